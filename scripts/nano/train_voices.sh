#!/usr/bin/env bash
# Trains codec and language model of both voices in one call on a machine with several GPUs:
# prompts.jsonl.gz, talk.jsonl.gz -> speech, codec, codes, language model, replies to be judged.
#
#   bash scripts/nano/train_voices.sh WORK
#
# GPU 0 trains the codec, then encodes and goes on with its decoder; the other GPUs prepare the language model, which
# begins as soon as there are codes. The teacher speaks all the while.
#
# Environment: PYTHON=python3  OUT=WORK/out  UNTIL_S=570 (this call)  PACK_S=45 (of it, for judging and packing)
#   INIT=assets/nano (tokenizer pieces and first weights)  CODEC_S=180 (end of the codec's training, from the start)
#   CODEC_HOURS=16  TEACHER_PROCESSES=cores-4  TEACHER_UNTIL_S=330  ROWS=36864  WORKERS=14  PEAK_RATE=1.2e-3
#   TEXT_WEIGHT=0.8
set -um
cd "$(dirname "$0")/../.."
WORK=${1:?usage: bash scripts/nano/train_voices.sh WORK}
PYTHON=${PYTHON:-python3} OUT=${OUT:-$WORK/out} UNTIL_S=${UNTIL_S:-570} PACK_S=${PACK_S:-45} INIT=${INIT:-assets/nano}
CODEC_S=${CODEC_S:-180} CODEC_HOURS=${CODEC_HOURS:-16} TEACHER_UNTIL_S=${TEACHER_UNTIL_S:-330}
TEACHER_PROCESSES=${TEACHER_PROCESSES:-$(($(nproc) > 8 ? $(nproc) - 4 : $(nproc)))}
ROWS=${ROWS:-36864} WORKERS=${WORKERS:-14} PEAK_RATE=${PEAK_RATE:-1.2e-3} TEXT_WEIGHT=${TEXT_WEIGHT:-0.8}
GPUS=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=2 OPENBLAS_NUM_THREADS=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29517
export GLOO_SOCKET_IFNAME=lo NCCL_SOCKET_IFNAME=lo NCCL_NVLS_ENABLE=0
mkdir -p "$WORK/logs" "$OUT"
LOGS=$WORK/logs END=$((UNTIL_S - PACK_S)) ARGS="--work $WORK"

say() { echo "[${SECONDS}s] $*" | tee -a "$LOGS/call.log"; }
run() { # run NAME COMMAND...: with its own log
    local name=$1
    shift
    "$PYTHON" -m "$@" >>"$LOGS/$name.log" 2>&1
    local code=$?
    say "$name ends with $code: $(tail -n 1 "$LOGS/$name.log" | cut -c1-300)"
    return $code
}

say "$GPUS GPUs, $(nproc) cores"
run tokenizer scripts.nano.tokenizer $ARGS --base "$INIT/tokenizer.json" &
TOKENIZER=$!
(
    renice -n 8 "$BASHPID" >/dev/null
    run teacher scripts.nano.teacher $ARGS --processes "$TEACHER_PROCESSES" --prompts-per-shard 64 --until-s "$TEACHER_UNTIL_S"
    touch "$WORK/speech/done.json" # what it has said by now is all of it
) &
TEACHER=$!

(
    export CUDA_VISIBLE_DEVICES=0
    run codec scripts.nano.train_codec $ARGS --init "$INIT/codec" --peak-rate 1.2e-3 --hours "$CODEC_HOURS" --call-seconds $((CODEC_S - SECONDS))
    [ -e "$WORK/codec/config.json" ] || cp -r "$INIT/codec" "$WORK"
    run tokenise scripts.nano.tokenise $ARGS --first-shards 500 --every-s 20 --sign "$WORK/codes.ready" &
    run decoder scripts.nano.train_codec $ARGS --hours 30 --max-hours 50 --decoder-only --peak-rate 7e-4 --batch 128 \
        --call-seconds $((END - SECONDS - 8))
    wait
) &
CODEC=$!

wait $TOKENIZER
run lengths scripts.nano.tokenise $ARGS --hours 16 --lengths-only --device cpu
PIDS=()
RANKS=$((GPUS > 1 ? GPUS - 1 : 1))
for rank in $(seq 0 $((RANKS - 1))); do
    CUDA_VISIBLE_DEVICES=$((GPUS > 1 ? rank + 1 : 0)) RANK=$rank WORLD_SIZE=$RANKS run "lm$rank" scripts.nano.train_lm $ARGS \
        --init "$INIT" --rows "$ROWS" --workers "$WORKERS" --peak-rate "$PEAK_RATE" --text-weight "$TEXT_WEIGHT" \
        --begin-at "$WORK/codes.ready" --seconds $((END - SECONDS)) ${LM_ARGS:-} &
    PIDS+=($!)
done
while [ $SECONDS -lt $((END + 3)) ] && kill -0 "${PIDS[@]}" 2>/dev/null; do
    sleep 3
    [ $((SECONDS / 3 % 8)) -eq 0 ] && say "$(tail -qn 1 "$LOGS"/{teacher,codec,decoder,lm0}.log 2>/dev/null | cut -c1-160 | tr '\n' '#')"
done
for pid in "${PIDS[@]}" $CODEC $TEACHER; do
    while kill -0 "$pid" 2>/dev/null && [ $SECONDS -lt $((END + 10)) ]; do sleep 0.5; done
    kill -TERM -- "-$pid" 2>/dev/null
done
say "trained"
ls -la "$WORK" "$WORK/lm" "$WORK/codec"

GPU=0 JUDGES=()
for sets in "harvard everyday" "hard homographs" "stress chat" "harvard hard"; do
    voice=ada speeds="1.0"
    [ "$GPU" = 3 ] && voice=ben
    CUDA_VISIBLE_DEVICES=$GPU timeout 25 "$PYTHON" -m scripts.nano.direct --lm "$WORK/lm" --sets $sets --temperatures 0.6 \
        --voices $voice --speeds $speeds --out "$OUT/replies$GPU.json" >"$LOGS/direct$GPU.log" 2>&1 &
    JUDGES+=($!)
    GPU=$((GPU + 1))
done
"$PYTHON" - "$WORK" <<'END'
import sys, torch
from pathlib import Path
from safetensors.torch import load_file, save_file
work = Path(sys.argv[1])
(work / "pack/lm").mkdir(parents=True, exist_ok=True)
for name in ("config.json", "tokenizer.json"):
    (work / "pack/lm" / name).write_bytes((work / "lm" / name).read_bytes())
save_file({k: v.half() for k, v in load_file(work / "lm/model.safetensors").items()}, work / "pack/lm/model.safetensors")
state = work / ("decoder.pt" if (work / "decoder.pt").exists() else "codec.pt")
model = torch.load(state, map_location="cpu")["model"]
torch.save({k: v.half() if v.is_floating_point() else v for k, v in model.items()}, work / "pack/codec_half.pt")
END
for pid in "${JUDGES[@]}"; do wait "$pid"; done
tar -C "$WORK/pack" -cf "$WORK/lm.tar" lm && split -b 15m -d -a 1 "$WORK/lm.tar" "$OUT/lm.tar.part"
mv "$OUT"/replies*.json "$WORK/" 2>/dev/null
(cd "$WORK" && tar -czf "$OUT/rest.tgz" codec logs $(ls replies*.json 2>/dev/null))
cp "$WORK/pack/codec_half.pt" "$OUT/"
ls -la "$OUT"
for log in teacher codec tokenise decoder lm0 lm1; do echo "== $log"; tail -n 6 "$LOGS/$log.log" | cut -c1-260; done
cat "$LOGS"/direct*.log | cut -c1-250 | tail -n 40
say "over"
