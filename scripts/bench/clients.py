"""Programs that others wrote, unchanged in front of this one: an address and a key is all they get.

Each is run by a Python that has its package (`--python`, several with commas between them), or by
Node in a folder whose node_modules have it (`--node`), over the program in a process of its own,
whose answers a scripted chat server thinks of; for Node it is served by https and wss, since the
realtime client there speaks to nothing else. Names of models and voices are those that the packages
have built in.

    version   of the package
    works     whether it came to its end; `error` is its last line otherwise
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import soundfile

from moss_engine.config import REPO_ROOT
from scripts.bench.common import Report
from scripts.bench.program import running

SPOKEN = REPO_ROOT / "assets" / "samples" / "good_morning.flac"
LIMIT_S = 120
CERTIFICATE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -days 2 -nodes "
    "-subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
).split()
AGENTS = """
import asyncio
from agents import function_tool, set_tracing_disabled
set_tracing_disabled(True)
@function_tool
def get_weather(city: str) -> str:
    "The weather of a city."
    return "It is sunny."
"""
CLIENT = "from openai import OpenAI\nclient = OpenAI()\n"
TOOL = """
tools = [{"type": "function", "function": {"name": "get_weather", "description": "Of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
    "required": ["city"], "additionalProperties": False}, "strict": True}}]
messages = [{"role": "user", "content": "What is the weather in Rome?"}]
"""


@dataclass(frozen=True)
class Stock:
    """`code` says what is done with `package`; RECORDING in it is a WAV file."""

    package: str
    code: str


PROGRAMS: dict[str, Stock] = {
    "speech": Stock("openai", CLIENT + """
with client.audio.speech.with_streaming_response.create(
    model="gpt-4o-mini-tts", voice="coral", input="Today is a wonderful day to build something!",
    instructions="Speak in a cheerful and positive tone.",
) as response:
    response.stream_to_file("/dev/null")
assert len(client.audio.speech.create(model="tts-1-hd", voice="alloy", input="Hi.", speed=2).read())
"""),
    "speech_events": Stock("openai", CLIENT + """
with client.audio.speech.with_streaming_response.create(
    model="gpt-4o-mini-tts", voice="nova", input="Good morning.", stream_format="sse",
    response_format="pcm",
) as response:
    lines = [line for line in response.iter_lines() if line]
assert "speech.audio.done" in lines[-1]
"""),
    "transcription": Stock("openai", CLIENT + """
with open(RECORDING, "rb") as file:
    assert client.audio.transcriptions.create(model="gpt-4o-transcribe", file=file).text
for name in ("text", "srt", "vtt"):
    with open(RECORDING, "rb") as file:
        assert client.audio.transcriptions.create(
            model="whisper-1", file=file, response_format=name, prompt="Names.", temperature=0.2)
with open(RECORDING, "rb") as file:
    found = client.audio.transcriptions.create(
        file=file, model="whisper-1", response_format="verbose_json",
        timestamp_granularities=["word"])
assert found.words and found.words[0].end > 0
with open(RECORDING, "rb") as file:
    events = list(client.audio.transcriptions.create(
        model="gpt-4o-mini-transcribe", file=file, response_format="text", stream=True))
assert events[-1].type == "transcript.text.done"
"""),
    "chat": Stock("openai", CLIENT + """
messages = [{"role": "developer", "content": "Talk like a pirate."},
    {"role": "user", "content": "Are semicolons optional in JavaScript?"}]
answer = client.chat.completions.create(
    model="gpt-5", messages=messages, store=True, metadata={"a": "b"}, user="me",
    prompt_cache_key="k", reasoning_effort="low")
assert answer.choices[0].message.content
chunks = client.chat.completions.create(model="gpt-4o", messages=messages, stream=True)
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
"""),
    "responses": Stock("openai", CLIENT + """
answer = client.responses.create(
    model="gpt-5", input="Write a one-sentence bedtime story about a unicorn.",
    instructions="Talk like a pirate.", reasoning={"effort": "low"}, store=True)
assert answer.output_text
events = list(client.responses.create(model="gpt-5", stream=True,
    input=[{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Hello."}]))
assert events[-1].type == "response.completed" and events[-1].response.output_text
tools = [{"type": "function", "name": "get_weather", "parameters": {"type": "object",
    "properties": {"city": {"type": "string"}}}, "strict": False}]
said = [{"role": "user", "content": "What is the weather in Rome?"}]
answer = client.responses.create(model="gpt-5", tools=tools, input=said)
said += answer.output
said.append({"type": "function_call_output", "call_id": answer.output[0].call_id,
    "output": "It is sunny."})
assert client.responses.create(model="gpt-5", tools=tools, input=said).output_text == "It is sunny."
"""),
    "chat_audio": Stock("openai", CLIENT + """
import base64
data = base64.b64encode(open(RECORDING, "rb").read()).decode()
answer = client.chat.completions.create(
    model="gpt-audio", modalities=["text", "audio"], audio={"voice": "alloy", "format": "wav"},
    messages=[{"role": "user", "content": [
        {"type": "text", "text": "What is in this recording?"},
        {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}]}], store=True)
assert base64.b64decode(answer.choices[0].message.audio.data)[:4] == b"RIFF"
"""),
    "chat_tools": Stock("openai", CLIENT + TOOL + """
answer = client.chat.completions.create(model="gpt-4.1", messages=messages, tools=tools)
call = answer.choices[0].message.tool_calls[0]
messages += [answer.choices[0].message,
    {"role": "tool", "tool_call_id": call.id, "content": "It is sunny."}]
answer = client.chat.completions.create(model="gpt-4.1", messages=messages, tools=tools)
assert answer.choices[0].message.content == "It is sunny."
"""),
    "realtime": Stock("openai", """
import asyncio
from openai import AsyncOpenAI
async def main():
    async with AsyncOpenAI().realtime.connect(model="gpt-realtime") as connection:
        await connection.session.update(session={"type": "realtime", "output_modalities": ["text"]})
        await connection.conversation.item.create(item={"type": "message", "role": "user",
            "content": [{"type": "input_text", "text": "Say hello!"}]})
        await connection.response.create()
        async for event in connection:
            assert event.type != "error", event
            if event.type == "response.done":
                break
asyncio.run(main())
"""),
    "agents_voice": Stock("openai-agents", AGENTS + """
import wave
import numpy as np
from agents import Agent
from agents.voice import AudioInput, SingleAgentVoiceWorkflow, VoicePipeline
agent = Agent(name="Assistant", instructions="You are kind.", tools=[get_weather])
with wave.open(RECORDING) as file:
    rate = file.getframerate()
    sound = np.frombuffer(file.readframes(file.getnframes()), np.int16)
async def main():
    pipeline = VoicePipeline(workflow=SingleAgentVoiceWorkflow(agent))
    result = await pipeline.run(AudioInput(buffer=sound, frame_rate=rate))
    heard = 0
    async for event in result.stream():
        if event.type == "voice_stream_event_error":
            raise event.error
        if event.type == "voice_stream_event_audio":
            heard += len(event.data)
    assert heard
asyncio.run(main())
"""),
    "agents_realtime": Stock("openai-agents", AGENTS + """
from agents.realtime import RealtimeAgent, RealtimeRunner
async def main():
    agent = RealtimeAgent(name="Assistant", instructions="You are kind.", tools=[get_weather])
    url = "ws" + os.environ["OPENAI_BASE_URL"][4:] + "/realtime?model=gpt-realtime"
    kinds = set()
    async with await RealtimeRunner(agent).run(model_config={"url": url}) as session:
        await session.send_message("What is the weather in Rome?")
        async for event in session:
            assert event.type != "error", event
            kinds.add(event.type)
            if event.type == "audio_end":
                break
    assert {"tool_end", "audio"} <= kinds, kinds
asyncio.run(main())
"""),
    "livekit": Stock("livekit-plugins-openai", """
import asyncio, wave
import aiohttp
from livekit import rtc
from livekit.agents import utils
from livekit.plugins import openai
async def main():
    async with openai.TTS(instructions="Be calm.") as speech:
        frames = [audio.frame async for audio in speech.synthesize("Good morning.")]
    assert sum(frame.samples_per_channel for frame in frames)
    with wave.open(RECORDING) as file:
        frame = rtc.AudioFrame(file.readframes(file.getnframes()), file.getframerate(), 1,
            file.getnframes())
    found = await openai.STT(use_realtime=False).recognize([frame])
    assert found.alternatives[0].text
asyncio.run(main())
"""),
    "livekit_realtime": Stock("livekit-plugins-openai", """
import asyncio
from livekit.plugins import openai
async def main():
    session = openai.realtime.RealtimeModel(voice="marin").session()
    reply = await session.generate_reply(instructions="Greet the user.")
    heard = 0
    async for message in reply.message_stream:
        async for frame in message.audio_stream:
            heard += frame.samples_per_channel
    await session.aclose()
    assert heard
asyncio.run(main())
"""),
    "pipecat": Stock("pipecat-ai", """
import asyncio
from pipecat.frames.frames import EndFrame, TTSAudioRawFrame, TTSSpeakFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineTask
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.openai.tts import OpenAITTSService
heard = []
class Ear(FrameProcessor):
    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            heard.append(frame.audio)
        await self.push_frame(frame, direction)
async def main():
    speech = OpenAITTSService(settings=OpenAITTSService.Settings(instructions="Be calm."))
    task = PipelineTask(Pipeline([speech, Ear()]))
    await task.queue_frames([TTSSpeakFrame("Good morning."), EndFrame()])
    await PipelineRunner(handle_sigint=False).run(task)
    assert sum(map(len, heard))
asyncio.run(main())
"""),
}  # fmt: skip
NODE_PROGRAMS: dict[str, Stock] = {
    "node": Stock("openai", """
import OpenAI from "openai";
import fs from "fs";
const client = new OpenAI();
const speech = await client.audio.speech.create({model: "gpt-4o-mini-tts", voice: "coral",
    input: "Today is a wonderful day.", instructions: "Speak in a cheerful tone."});
if (!(await speech.arrayBuffer()).byteLength) throw new Error("no speech");
const found = await client.audio.transcriptions.create({
    file: fs.createReadStream(process.env.RECORDING), model: "gpt-4o-transcribe"});
if (!found.text) throw new Error("no words");
const answer = await client.chat.completions.create({model: "gpt-5", store: true,
    messages: [{role: "developer", content: "Be kind."}, {role: "user", content: "Hello."}]});
if (!answer.choices[0].message.content) throw new Error("no answer");
"""),
    "node_realtime": Stock("openai", """
import OpenAI from "openai";
import { OpenAIRealtimeWS } from "openai/realtime/ws";
const realtime = new OpenAIRealtimeWS({model: "gpt-realtime"}, new OpenAI());
realtime.socket.on("open", () => {
    realtime.send({type: "session.update",
        session: {type: "realtime", model: "gpt-realtime", output_modalities: ["text"]}});
    realtime.send({type: "conversation.item.create", item: {type: "message", role: "user",
        content: [{type: "input_text", text: "Say a couple paragraphs!"}]}});
    realtime.send({type: "response.create"});
});
realtime.on("error", (error) => { console.error(error.message); process.exit(1); });
realtime.on("response.done", () => { realtime.close(); process.exit(0); });
"""),
    "node_realtime_beta": Stock("openai-realtime-api", """
import { RealtimeClient } from "openai-realtime-api";
const url = "ws" + process.env.OPENAI_BASE_URL.slice(4) + "/realtime";
const client = new RealtimeClient({url, apiKey: "none",
    sessionConfig: {instructions: "You are kind.", voice: "alloy", modalities: ["text", "audio"]}});
let heard = 0;
client.on("error", (error) => { console.error(JSON.stringify(error)); process.exit(1); });
client.on("conversation.updated", ({ delta }) => { heard += delta?.audio?.length || 0; });
client.on("conversation.item.completed", ({ item }) => {
    if (item.role === "assistant") process.exit(heard ? 0 : 1);
});
await client.connect();
client.sendUserMessageContent([{type: "input_text", text: "Hello there."}]);
"""),
    "node_agents": Stock("@openai/agents-realtime", """
import { OpenAIRealtimeWebSocket, RealtimeAgent, RealtimeSession } from "@openai/agents-realtime";
const url = "ws" + process.env.OPENAI_BASE_URL.slice(4) + "/realtime?model=gpt-realtime";
const session = new RealtimeSession(
    new RealtimeAgent({name: "Assistant", instructions: "You are kind."}),
    {transport: new OpenAIRealtimeWebSocket({url}), model: "gpt-realtime"});
let heard = 0;
session.on("audio", (event) => { heard += event.data.byteLength; });
session.on("error", (error) => { console.error(JSON.stringify(error)); process.exit(1); });
session.on("audio_stopped", () => process.exit(heard ? 0 : 1));
await session.connect({apiKey: "none"});
session.sendMessage("Hello there.");
"""),
}  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--python", default=sys.executable, metavar="PATHS", help="Pythons with the packages"
    )
    parser.add_argument("--node", type=Path, metavar="FOLDER", help="with node_modules")
    parser.add_argument("--port", type=int, default=7872)


def run(args: argparse.Namespace, report: Report) -> None:
    pythons = args.python.split(",")
    with tempfile.TemporaryDirectory() as place, thinking() as brain:
        folder, options = Path(place), ("--brain", brain, "--brain-model", "any")
        recording = folder / "question.wav"
        soundfile.write(recording, *soundfile.read(SPOKEN, dtype="int16"), subtype="PCM_16")
        given = {"OPENAI_API_KEY": "none", "RECORDING": str(recording)}
        environment = {**os.environ, **given}
        environment.pop("PYTHONPATH", None)

        def tell(name: str, found: dict[str, Any]) -> None:
            report.say(f"{name}: {found}")
            report.add(**{name: found})

        with running(args.port, *options) as page:
            environment["OPENAI_BASE_URL"] = f"{page.url}/v1"
            for name, stock in PROGRAMS.items():
                tell(name, by_python(stock, pythons, environment))
        if args.node is None:
            return
        cert, key = folder / "cert.pem", folder / "key.pem"
        subprocess.run([*CERTIFICATE, "-keyout", key, "-out", cert], check=True)
        with running(args.port, *options, "--tls-cert", str(cert), "--tls-key", str(key)) as page:
            environment["OPENAI_BASE_URL"] = f"{page.url}/v1"
            environment["NODE_EXTRA_CA_CERTS"] = str(cert)
            for name, stock in NODE_PROGRAMS.items():
                tell(name, by_node(stock, args.node, environment))


def by_python(stock: Stock, pythons: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """How a program ended, in the first Python that has its package."""
    tell = f"import importlib.metadata as m; print(m.version({stock.package!r}))"
    for python in pythons:
        version = subprocess.run([python, "-c", tell], capture_output=True, text=True)
        if version.returncode == 0:
            code = f"import os\nRECORDING = os.environ['RECORDING']\n{stock.code}"
            found = {"package": stock.package, "version": version.stdout.strip()}
            return {**found, **ended([python, "-c", code], environment)}
    return {"package": stock.package, "works": None, "error": "not installed"}


def by_node(stock: Stock, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    about = folder / "node_modules" / stock.package / "package.json"
    version = json.loads(about.read_text(encoding="utf-8"))["version"]
    command = ["node", "--input-type=module", "-e", stock.code]
    found = {"package": f"npm {stock.package}", "version": version}
    return {**found, **ended(command, environment, folder)}


def ended(
    command: list[str], environment: dict[str, str], folder: Path | None = None
) -> dict[str, Any]:
    try:
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return {"works": False, "error": f"no end after {LIMIT_S} s"}
    if done.returncode == 0:
        return {"works": True}
    return {"works": False, "error": (done.stderr.strip().splitlines() or [""])[-1]}


@contextmanager
def thinking() -> Iterator[str]:
    """The address of a chat server that calls the first function it is offered, and repeats what
    came of it; without one it says hello."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            last = asked["messages"][-1]
            delta: dict[str, Any] = {"content": "Hello there."}
            if last["role"] == "tool":
                delta = {"content": last["content"]}
            elif asked.get("tools"):
                name = asked["tools"][0]["function"]["name"]
                call = {"name": name, "arguments": '{"city": "Rome"}'}
                delta = {"tool_calls": [{"index": 0, "id": "call_1", "function": call}]}
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            event = json.dumps({"choices": [{"delta": delta}]})
            self.wfile.write(f"data: {event}\n\ndata: [DONE]\n\n".encode())

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
