#!/usr/bin/env bash
# Trains the nano voice on one machine with a GPU: prompts.jsonl.gz -> speech, codec, codes, vocoder, language model.
#
#   bash scripts/nano/train_all.sh WORK
#
# Stages overlap: the teacher fills the CPU while the codec trains on the first hours of its speech; the vocoder trains
# beside the language model, on a second GPU where there is one. A call ends after UNTIL_S seconds; the next call with the same WORK goes on where it ended.
# What was made is packed into OUT at the end of every call (join split files with `cat`).
#
# Environment, with defaults:
#   PYTHON=python3  OUT=WORK/out  UNTIL_S=575 (this call)  PACK_S=30 (of it, for packing)  LOAD_S=35 (a stage's own start and end)
#   TEACHER_HOURS=120  TEACHER_PROCESSES=cores-1  TEACHER_SHARD=96
#   INIT= (a finished checkpoint folder, e.g. assets/nano: its codec, vocoder and tokenizer are kept, and the language
#     model goes on from its weights)
#   ENCODE_HOURS=inf (of speech, all; several, as in "25 60 inf": the language model begins with the first and takes in
#     the later ones as they come)
#   CODEC_SECONDS=210  CODEC_HOURS=20  LM_SECONDS=1300  (training time over all calls)
#     A time may be "rest": the schedule ends with this call.
#   VOCODER_SECONDS=450 (of each vocoder, in one call: a call that has less goes on from the last one's weights with a
#     schedule of its own)  VOCODER_HOURS=10 (of their speech)
#   CODEC_ARGS  VOCODER_ARGS  BIGVGAN_ARGS  LM_ARGS  (further options of those commands)
#   VOCODER_GPU=0  LM_GPU=1  BIGVGAN_GPU=2  (where there are so many GPUs, else 0)
#   DELIVER="logs parts codes"  (what to pack, in this order, as far as it fits; codes only once)
#   OUT_MIB=62  OUT_FILES=8  PART_MIB=15  (what OUT may hold)
set -uom pipefail # m: every stage in the background is a process group of its own, to be ended as a whole
cd "$(dirname "$0")/../.."

WORK=${1:?usage: bash scripts/nano/train_all.sh WORK}
PYTHON=${PYTHON:-python3}
OUT=${OUT:-$WORK/out}
UNTIL_S=${UNTIL_S:-575} PACK_S=${PACK_S:-30} LOAD_S=${LOAD_S:-35}
TEACHER_HOURS=${TEACHER_HOURS:-120} TEACHER_SHARD=${TEACHER_SHARD:-96} ENCODE_HOURS=${ENCODE_HOURS:-inf}
TEACHER_PROCESSES=${TEACHER_PROCESSES:-$(($(nproc) > 1 ? $(nproc) - 1 : 1))}
CODEC_SECONDS=${CODEC_SECONDS:-210} CODEC_HOURS=${CODEC_HOURS:-20}
VOCODER_SECONDS=${VOCODER_SECONDS:-450} VOCODER_HOURS=${VOCODER_HOURS:-10} LM_SECONDS=${LM_SECONDS:-1300}
GPUS=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
VOCODER_GPU=${VOCODER_GPU:-0} LM_GPU=${LM_GPU:-$((GPUS > 1 ? 1 : 0))} BIGVGAN_GPU=${BIGVGAN_GPU:-$((GPUS > 2 ? 2 : 0))}
INIT=${INIT:-}
DELIVER=${DELIVER:-logs parts codes} OUT_MIB=${OUT_MIB:-62} OUT_FILES=${OUT_FILES:-8} PART_MIB=${PART_MIB:-15}

export PYTHONUNBUFFERED=1
LOGS=$WORK/logs
mkdir -p "$WORK" "$OUT" "$LOGS"
WORK=$(realpath "$WORK") OUT=$(realpath "$OUT") LOGS=$(realpath "$LOGS")

# Seconds that training has left in this call.
left() { echo $((UNTIL_S - PACK_S - SECONDS)); }

say() { echo "[$(date +%T) ${SECONDS}s] $*" | tee -a "$LOGS/train_all.log"; }

# stage NAME COMMAND...: run one stage with its own log; NAME.done says that it has nothing more to do.
stage() {
    local name=$1 code
    shift
    say "$name starts"
    echo "--- $*" >>"$LOGS/$name.log"
    "$@" >>"$LOGS/$name.log" 2>&1
    code=$?
    say "$name ends with $code: $(tail -n 1 "$LOGS/$name.log")"
    return $code
}

# trainer NAME TOTAL_OPTION SECONDS CALL_OPTION COMMAND...: a stage that stops by the clock, after SECONDS over all calls
# or at the end of this one; it is done if it ends before this call's share did.
trainer() {
    local name=$1 total_option=$2 seconds=$3 call_option=$4 call started=$SECONDS
    shift 4
    [ -e "$WORK/$name.done" ] && return 0
    call=$(($(left) - LOAD_S))
    [ "$call" -gt 5 ] || { say "$name: no time left in this call"; return 1; }
    local total=("$total_option" "$seconds")
    [ "$seconds" = rest ] && total=()
    stage "$name" "$@" --work "$WORK" ${total[@]+"${total[@]}"} "$call_option" "$call" || return 1
    [ $((SECONDS - started)) -ge "$call" ] || touch "$WORK/$name.done"
}

teacher() {
    stage teacher nice -n 5 "$PYTHON" -m scripts.nano.teacher --work "$WORK" --processes "$TEACHER_PROCESSES" \
        --hours "$TEACHER_HOURS" --prompts-per-shard "$TEACHER_SHARD" --until-s "$(left)"
}

# Codes of the speech, anew each time that there are ENCODE_HOURS of it.
encode() {
    local hours
    for hours in $ENCODE_HOURS; do
        CUDA_VISIBLE_DEVICES=$VOCODER_GPU stage tokenise "$PYTHON" -m scripts.nano.tokenise --work "$WORK" --hours "$hours"
    done
    touch "$WORK/codes.done"
}

codec() {
    # shellcheck disable=SC2086
    trainer codec --seconds "$CODEC_SECONDS" --call-seconds "$PYTHON" -m scripts.nano.train_codec --hours "$CODEC_HOURS" ${CODEC_ARGS:-}
}
# Speech of the vocoder's own, in its parts: once, beside the codec's training.
vocoder_speech() {
    local script=scripts.nano.vocoder.speech
    [ -e "$WORK/vocoder_speech.done" ] && return 0
    stage vocoder_phonemes "$PYTHON" -m $script phonemes --work "$WORK" --hours "$VOCODER_HOURS" &&
        stage vocoder_speech nice -n 5 "$PYTHON" -m $script speak --work "$WORK" --processes "$TEACHER_PROCESSES" &&
        touch "$WORK/vocoder_speech.done"
}
# vocoder GPU PRESET ARGS...: a call of its training, which goes on from the last one's weights, and its export.
vocoder() {
    local gpu=$1 preset=$2 call init=()
    shift 2
    [ -e "$WORK/$preset.done" ] && return 0
    call=$(($(left) - LOAD_S))
    [ "$call" -gt "$VOCODER_SECONDS" ] && call=$VOCODER_SECONDS
    [ "$call" -gt 5 ] || { say "$preset: no time left in this call"; return 1; }
    [ -e "$WORK/$preset.pt" ] && init=(--init "$WORK/$preset.pt")
    CUDA_VISIBLE_DEVICES=$gpu stage "$preset" "$PYTHON" -m scripts.nano.train_vocoder "$preset" --work "$WORK" \
        --codec "$WORK/codec" --seconds "$call" ${init[@]+"${init[@]}"} "$@" || return 1
    "$PYTHON" -m scripts.nano.export_vocoder "$preset" --work "$WORK" >>"$LOGS/$preset.log" || return 1
    [ "$call" -lt "$VOCODER_SECONDS" ] || touch "$WORK/$preset.done"
}
lm() {
    # shellcheck disable=SC2086
    CUDA_VISIBLE_DEVICES=$LM_GPU trainer lm --total-seconds "$LM_SECONDS" --seconds \
        "$PYTHON" -m scripts.nano.train_lm ${INIT:+--init "$INIT"} ${LM_ARGS:-}
}

# The parts of a finished checkpoint in place of their training.
take_parts() {
    [ -e "$WORK/bigvgan.done" ] && return 0
    cp -r "$INIT/codec" "$INIT/vocoder" "$INIT/tokenizer.json" "$WORK" &&
        touch "$WORK/codec.done" "$WORK/source_filter_small.done" "$WORK/bigvgan.done"
}

# Wait for the processes named, at most until this call's training time is over; then end what still runs.
wait_for() {
    local pid
    for pid in "$@"; do
        while kill -0 "$pid" 2>/dev/null && [ "$(left)" -gt -10 ]; do sleep 0.5; done
        if kill -0 "$pid" 2>/dev/null; then
            say "the call is over: ending process group $pid"
            kill -TERM -- "-$pid" 2>/dev/null
        fi
        wait "$pid" 2>/dev/null
    done
}

# Say now what is missing, not after minutes of training.
preflight() {
    "$PYTHON" - <<'END'
from importlib import metadata, util
missing = [n for n in ("numpy", "torch", "onnxruntime", "hibari", "scipy", "tokenizers", "safetensors", "bigvgan") if not util.find_spec(n)]
print("torch", metadata.version("torch"), "onnxruntime", metadata.version("onnxruntime"), "missing:", missing or "nothing")
raise SystemExit(bool(missing))
END
}

train() {
    local tokenizer_pid teacher_pid= encoder_pid= vocoder_pid= bigvgan_pid= lm_pid= speech_pid=
    if [ ! -e "$WORK/prompts.jsonl.gz" ]; then
        say "$WORK/prompts.jsonl.gz is missing: make it with python -m scripts.nano.prompts"
        return 1
    fi
    if [ -n "$INIT" ]; then take_parts || return 1; fi
    [ -e "$WORK/tokenizer.json" ] || stage tokenizer "$PYTHON" -m scripts.nano.tokenizer --work "$WORK" &
    tokenizer_pid=$!
    if [ ! -e "$WORK/speech/done.json" ]; then
        teacher &
        teacher_pid=$!
    fi
    if [ ! -e "$WORK/source_filter_small.done" ] || [ ! -e "$WORK/bigvgan.done" ]; then
        vocoder_speech &
        speech_pid=$!
    fi
    if ! codec; then
        say "codec: once more without compiling"
        CODEC_ARGS="${CODEC_ARGS:-} --no-compile"
        codec || { wait_for $teacher_pid; return 1; }
    fi
    [ -e "$WORK/codec.done" ] || { wait_for $teacher_pid; return 0; }
    wait_for $speech_pid
    # shellcheck disable=SC2086
    vocoder "$VOCODER_GPU" source_filter_small ${VOCODER_ARGS:-} &
    vocoder_pid=$!
    # shellcheck disable=SC2086
    vocoder "$BIGVGAN_GPU" bigvgan ${BIGVGAN_ARGS:-} &
    bigvgan_pid=$!
    wait_for $tokenizer_pid
    if [ ! -e "$WORK/codes.done" ]; then
        encode &
        encoder_pid=$!
    fi
    while [ ! -e "$WORK/codes.npz" ] && [ "$(left)" -gt 0 ]; do sleep 0.5; done
    if [ -e "$WORK/codes.npz" ]; then
        lm &
        lm_pid=$!
    fi
    wait_for $lm_pid $vocoder_pid $bigvgan_pid $teacher_pid $encoder_pid
}

# pack NAME FILE...: a compressed archive of files in WORK, in parts that OUT may hold; left out where it does not fit.
pack() {
    local name=$1 archive=$WORK/pack/$1 size parts
    shift
    mkdir -p "$WORK/pack"
    tar -C "$WORK" -czf "$archive" "$@" || return 1
    size=$(stat -c %s "$archive")
    parts=$(((size + PART_MIB * 1048576 - 1) / (PART_MIB * 1048576)))
    if [ $((packed_bytes + size)) -gt $((OUT_MIB * 1048576)) ] || [ $((packed_files + parts)) -gt "$OUT_FILES" ]; then
        say "$name ($size bytes) does not fit into OUT any more and is left out"
        return 1
    fi
    if [ "$parts" -gt 1 ]; then
        split -b "${PART_MIB}m" -d -a 1 "$archive" "$OUT/$name.part"
    else
        cp "$archive" "$OUT/$name"
    fi
    packed_bytes=$((packed_bytes + size)) packed_files=$((packed_files + parts))
    say "packed $name: $size bytes in $parts file(s)"
}

# The language model's weights in half precision: half the size to carry, far finer than the int8 they end up in.
halve() {
    rm -rf "$WORK/pack/lm" && mkdir -p "$WORK/pack" && cp -r "$WORK/lm" "$WORK/pack/lm" || return 1
    "$PYTHON" - "$WORK/pack/lm/model.safetensors" <<'END'
import sys
from safetensors.torch import load_file, save_file
path = sys.argv[1]
save_file({name: tensor.half() for name, tensor in load_file(path).items()}, path)
END
}

deliver() {
    local packed_bytes=0 packed_files=0 made=() name
    for name in $DELIVER; do
        made=()
        case $name in
            logs) pack logs.tgz logs ;;
            parts)
                for name in codec vocoder tokenizer.json; do [ -e "$WORK/$name" ] && made+=("$name"); done
                if [ -e "$WORK/lm" ] && halve; then made+=(-C "$WORK/pack" lm); fi
                [ ${#made[@]} -eq 0 ] || pack parts.tgz "${made[@]}"
                ;;
            codes)
                if [ -e "$WORK/codes.npz" ] && [ ! -e "$WORK/codes.delivered" ]; then
                    pack codes.tgz codes.npz && touch "$WORK/codes.delivered"
                fi
                ;;
        esac
    done
}

figures() {
    echo "=== figures after ${SECONDS}s ==="
    local name
    for name in teacher codec tokenise source_filter_small bigvgan lm; do
        [ -e "$LOGS/$name.log" ] && tail -n 4 "$LOGS/$name.log" | cut -c1-300 | sed "s/^/$name | /"
    done
    ls "$WORK"/*.done 2>/dev/null
    command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=memory.used,utilization.gpu --format=csv,noheader
    du -sm "$WORK" "$OUT"
}

preflight && train
deliver
figures
