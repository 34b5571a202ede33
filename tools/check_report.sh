#!/usr/bin/env bash
# Makes reports of a tiny run (finished, unfinished, several on a page) and of a sweep, and opens them in Chromium (tools/check_page.py).
# Usage: tools/check_report.sh [BRICK]      (build/brick)
set -euo pipefail
cd "$(dirname "$0")/.."

brick=$(realpath "${1:-build/brick}")
check=$PWD/tools/check_page.py
export OMP_WAIT_POLICY=passive
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

"$brick" synth --out m --shape tiny --documents 8
cat >run.yaml <<'YAML'
model: m
scheme: W4A4KV4-static
threads: 1
data:
  detection:   {text: m/train.txt, samples: 4, seqlen: 128}
  calibration: {text: m/calib.txt, samples: 2, seqlen: 32}
  training:    {text: m/train.txt, samples: 6, seqlen: 32, validation: 2}
  evaluation:  {text: m/eval.txt, seqlen: 32, windows: 4}
train: {epochs: 3, batch: 2, lr_quant: 1e-3, lr_weight: 1e-3}
evaluate: [ablation]
YAML
"$brick" run run.yaml --out run 2>/dev/null >&2
"$brick" run run.yaml --out dynamic --set scheme=W4A8KV4-dynamic --set prefix.mode=none 2>/dev/null >&2
cp -R run unfinished
rm unfinished/summary.json

# Two axes; points that are dropped after the first block have no result.
cat >sweep.yaml <<'YAML'
base: run.yaml
set: {evaluate: [ppl]}
grid:
  train.epochs: [1, 3, 6]
  train.lr_quant: [0.0001, 0.0004642, 0.002154, 0.01]
halving: {blocks: [1], keep: 0.8}
YAML
"$brick" sweep sweep.yaml --out sweep 2>/dev/null >&2
if [ "$(grep -c '"status": "done"' sweep/results.jsonl)" -lt 6 ] || ! grep -q '"status": "stopped"' sweep/results.jsonl; then
    echo "check_report: the sweep has not both points with a result and points without"
    cat sweep/results.jsonl
    exit 1
fi

"$brick" report run 2>/dev/null
"$brick" report unfinished 2>/dev/null
"$brick" report sweep
"$brick" report run dynamic sweep --out all 2>/dev/null
"$check" run/report/index.html unfinished/report/index.html sweep/report/index.html all/index.html
