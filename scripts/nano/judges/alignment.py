"""Where two word sequences part: the longest run of words that one has and the other lacks."""

from __future__ import annotations

from collections.abc import Sequence


def longest_gap(expected: Sequence[str], heard: Sequence[str]) -> int:
    """Length of the longest run of neighbouring deletions, or of neighbouring insertions, in a
    cheapest alignment."""
    costs = [list(range(len(heard) + 1))]
    for i, word in enumerate(expected, 1):
        row = [i]
        for j, other in enumerate(heard, 1):
            row.append(min(costs[-1][j] + 1, row[-1] + 1, costs[-1][j - 1] + (word != other)))
        costs.append(row)
    i, j, longest, run, last = len(expected), len(heard), 0, 0, ""
    while i or j:
        if i and j and costs[i][j] == costs[i - 1][j - 1] + (expected[i - 1] != heard[j - 1]):
            kind, i, j = "match", i - 1, j - 1
        elif i and costs[i][j] == costs[i - 1][j] + 1:
            kind, i = "missing", i - 1
        else:
            kind, j = "added", j - 1
        run = run + 1 if kind == last else 1
        last = kind
        longest = max(longest, run if kind != "match" else 0)
    return longest
