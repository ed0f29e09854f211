"""How a program asks for speech at this very address: by curl, from Python and from JavaScript."""

from __future__ import annotations

import html

BODY = '{"model": "@model@", "input": "Good morning.", "response_format": "wav"}'
WAYS = (
    'curl @address@/v1/audio/speech -H "Content-Type: application/json" \\\n'
    f"  -d '{BODY}' -o hello.wav",
    (
        "from openai import OpenAI\n"
        'client = OpenAI(base_url="@address@/v1", api_key="none")\n'
        'asked = {"model": "@model@", "voice": "@voice@", "input": "Good morning."}\n'
        "with client.audio.speech.with_streaming_response.create(**asked) as reply:\n"
        '    reply.stream_to_file("hello.mp3")'
    ),
    (
        'const answer = await fetch("@address@/v1/audio/speech", {\n'
        '  method: "POST",\n'
        '  headers: { "Content-Type": "application/json" },\n'
        f"  body: JSON.stringify({BODY}),\n"
        "});\n"
        "new Audio(URL.createObjectURL(await answer.blob())).play();"
    ),
)


def programs(model: str, voice: str) -> str:
    """HTML; the page puts its own address in for @address@."""
    ways = ""
    for code in WAYS:
        code = html.escape(code.replace("@model@", model).replace("@voice@", voice))
        ways += (
            f'<pre tabindex="0" aria-label="A program"><code class="way" translate="no">{code}'
            "</code></pre>"
        )
    return f"<h3>From a program</h3>\n  {ways}"
