"""The panel that shows how a program speaks to this very address: by curl, from Python and from
JavaScript."""

from __future__ import annotations

import html

BODY = '{"model": "@model@", "input": "Good morning.", "response_format": "wav"}'
KEY = "KEY"
CURL = (
    'curl @address@/v1/audio/speech -H "Content-Type: application/json" @key@\\\n'
    f"  -d '{BODY}' -o hello.wav"
)
PYTHON = """from openai import OpenAI

client = OpenAI(base_url="@address@/v1", api_key="@key@")
asked = {"model": "@model@", "voice": "@voice@", "input": "Good morning."}
with client.audio.speech.with_streaming_response.create(**asked) as reply:
    reply.stream_to_file("hello.mp3")"""
JAVASCRIPT = (
    'const answer = await fetch("@address@/v1/audio/speech", {\n'
    '  method: "POST",\n'
    '  headers: { "Content-Type": "application/json"@key@ },\n'
    f"  body: JSON.stringify({BODY}),\n"
    "});\n"
    "new Audio(URL.createObjectURL(await answer.blob())).play();"
)
HEADER = f'"Authorization: Bearer {KEY}"'
WAYS = (  # name, program, what stands for @key@ with keys and without
    ("curl", CURL, f"-H {HEADER} ", ""),
    ("Python", PYTHON, KEY, "none"),
    ("JavaScript", JAVASCRIPT, f', "Authorization": "Bearer {KEY}"', ""),
)
NAME = "Use it from a program"
OPEN_PROGRAMS = (
    f'<button type="button" class="programs-open" aria-haspopup="dialog">{NAME}</button>'
)


def programs(model: str, voice: str, *, by_key: bool, tool: bool) -> str:
    """HTML; the page puts its own address in for @address@. `by_key`: programs need a key; `tool`:
    the tool for the Model Context Protocol is there, too."""
    ways = "".join(
        _way(name, code.replace("@key@", with_key if by_key else without), model, voice)
        for name, code, with_key, without in WAYS
    )
    key = "<p>KEY stands for one of the keys that the operator of this page gives.</p>"
    mcp = (
        "<h3>As a tool</h3><p>Programs that speak the Model Context Protocol find the tool say at "
        'this address.</p><p><code class="way" translate="no">@address@/mcp</code></p>'
    )
    return f"""
<dialog class="about programs" aria-labelledby="programs-head">
  <h2 id="programs-head">{NAME}</h2>
  <p>Whatever speaks to OpenAI's speech interfaces speaks to this address, too.</p>
  {key if by_key else ""}{ways}{mcp if tool else ""}
  <p>The file docs/api.md in the program's folder describes every field, conversations, and talking
    in real time.</p>
  <form method="dialog"><button class="about-close">Close</button></form>
</dialog>"""


def _way(name: str, code: str, model: str, voice: str) -> str:
    code = html.escape(code.replace("@model@", model).replace("@voice@", voice))
    return (
        f'<div class="way-head"><h3 translate="no">{name}</h3>'
        '<button type="button" class="way-copy">Copy</button></div>'
        f'<pre tabindex="0" aria-label="A program"><code class="way" translate="no">{code}'
        "</code></pre>"
    )
