#!/usr/bin/env bash
# Writes every planner section of docs/benchmarks.md: traces first, then the comparisons, each by the command that its section names.
#
#   tools/planner_benchmarks.sh ROUTING TEXTS
#
# ROUTING  a folder with deepseek-v2-lite and gpt-oss-20b, each of *.topk_ids.npy and *.sequences.json
# TEXTS    a folder with wiki.txt, math.txt and code.txt: three domains for the matrix of plans and texts
#
# About twenty minutes on two cores. Traces that are in out/ already are kept.
set -euo pipefail
[ $# -eq 2 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
routing=$(realpath "$1") texts=$(realpath "$2")
cd "$(dirname "$0")/.."
[ -x .venv/bin/python3 ] && python=.venv/bin/python3 || python=python3
mkdir -p out

made() { [ -e "out/$1" ] && echo "out/$1: kept" || { echo "out/$1"; return 1; }; }
section() { # name, arguments of grace
  echo "== $1"
  ./run grace "${@:2}" --section "$1" --write docs/benchmarks.md > "out/$1.txt"
}

made deepseek-v2-lite.trace || "$python" tools/npy_to_trace.py "$routing"/deepseek-v2-lite/{intent,law}.topk_ids.npy \
  --sequences "$routing"/deepseek-v2-lite/{intent,law}.sequences.json --num-experts 64 --model deepseek-v2-lite \
  --first-decoder-layer 1 --phase prefill --out out/deepseek-v2-lite.trace
made gpt-oss-20b.trace || "$python" tools/npy_to_trace.py "$routing"/gpt-oss-20b/decode.topk_ids.npy \
  --sequences "$routing"/gpt-oss-20b/decode.sequences.json --num-experts 32 --model gpt-oss-20b --phase decode --out out/gpt-oss-20b.trace
made demo.trace || { cat models/demo/heldout/*/*.txt > out/heldout.txt; ./run grace profile models/demo --text out/heldout.txt --out out/demo.trace; }
for text in wiki math code; do
  made $text.trace || ./run grace profile models/demo --text "$texts/$text.txt" --out out/$text.trace
done

section planner-deepseek-v2-lite compare --trace out/deepseek-v2-lite.trace --cluster 2x4 --slots 8,9,grace
section planner-gpt-oss-20b compare --trace out/gpt-oss-20b.trace --cluster 2x4 --slots 4,5,grace
section planner-demo compare --trace out/demo.trace --cluster 2x4 --slots 8,9,grace
section planner-routing compare --trace out/deepseek-v2-lite.trace --cluster 2x4 --strategies eplb,eplb-cover,eplb-cover-feedback --slots 9,12
section planner-transfer compare --trace out/wiki.trace --trace out/math.trace --trace out/code.trace --cluster 2x2 --slots grace --splits 3
section reproduce reproduce --trace out/deepseek-v2-lite.trace --cluster 2x2
section reproduce-transfer reproduce --trace out/wiki.trace --trace out/math.trace --trace out/code.trace --shape demo --cluster 2x2 --table transfer --splits 3
for cluster in 1x8 2x2 4x8; do
  for trace in deepseek-v2-lite gpt-oss-20b demo; do
    section planner-$trace-$cluster compare --trace out/$trace.trace --cluster $cluster --slots grace \
      --strategies vanilla,occult,eplb,eplb-flat,grace,joint-slow,joint-fast --effort 0.5 --splits 3
  done
done
