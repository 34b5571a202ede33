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

# Points as brick sweep writes them: two axes, one point without a result.
mkdir sweep
for epochs in 1 3 6; do
    for lr in 0.0001 0.0004642 0.002154 0.01; do
        awk -v e="$epochs" -v lr="$lr" 'BEGIN {
            gap = 0.1 / e + 0.02 * (log(lr) / log(10) + 2.7) ^ 2; done = !(e == 6 && lr == 0.01)
            printf "{\"point\": \"epochs=%s,lr_quant=%s\", \"train.epochs\": %s, \"train.lr_quant\": %s, \"status\": \"%s\", ", e, lr, e, lr, done ? "done" : "failed"
            if (done) printf "\"ppl_fp\": 8, \"ppl_init\": 11, \"ppl_final\": %.6f, \"gap\": %.6f, \"message\": null}\n", 8 * exp(gap), gap
            else print "\"ppl_fp\": null, \"ppl_init\": null, \"ppl_final\": null, \"gap\": null, \"message\": \"exit code 4\"}"
        }' >>sweep/results.jsonl
    done
done

"$brick" report run 2>/dev/null
"$brick" report unfinished 2>/dev/null
"$brick" report sweep
"$brick" report run dynamic sweep --out all 2>/dev/null
"$check" run/report/index.html unfinished/report/index.html sweep/report/index.html all/index.html
