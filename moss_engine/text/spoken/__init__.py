"""Written English -> the words that are said."""
