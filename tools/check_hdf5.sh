#!/usr/bin/env bash
# Every HDF5 file that brick writes opens in h5ls, h5dump and h5py, with all its values; h5py sees f16 as <f2 and f32 as <f4.
# Usage: tools/check_hdf5.sh [build/brick]
set -euo pipefail
cd "$(dirname "$0")/.."

brick=$PWD/${1:-build/brick}
python=python3
"$python" -c 'import h5py' 2>/dev/null || python=/usr/bin/python3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
export BRICK_CACHE=cache BRICK_LOG=warn OMP_WAIT_POLICY=passive
"$brick" synth --shape tiny --documents 8 --out m >/dev/null
cat >run.yaml <<'Y'
model: m
scheme: W4A4KV4-static
data:
  detection:  {text: m/train.txt, samples: 4, seqlen: 64}
  training:   {text: m/train.txt, samples: 4, seqlen: 32, validation: 2}
  evaluation: {text: m/eval.txt, seqlen: 32, windows: 2}
train: {epochs: 1, batch: 2, target: both}
store: {keep: all, compression: gzip}
Y
"$brick" run run.yaml --out run >/dev/null
for dtype in f16 f32; do
    "$brick" dump --model m --text m/eval.txt --sites down_in,key --windows 2 --seqlen 32 --dtype $dtype --out $dtype.h5 >/dev/null
done

n=0
while IFS= read -r file; do
    h5ls -r "$file" >/dev/null
    h5dump "$file" >/dev/null
    "$python" - "$file" <<'P'
import sys
import h5py

def read(name, item):
    if isinstance(item, h5py.Dataset):
        values = item[()]
        assert values.shape == item.shape, name
        seen.append(item.dtype.str)

seen = []
with h5py.File(sys.argv[1], "r") as f:
    f.visititems(read)
    assert f.attrs["complete"] == 1 and f.attrs["schema"], sys.argv[1]
name = sys.argv[1]
assert seen, name
if name.endswith(("f16.h5", "f32.h5")):
    assert ("<f2" if "f16" in name else "<f4") in seen, (name, seen)
P
    n=$((n + 1))
done < <(find . -name '*.h5' | sort)
[ "$n" -ge 8 ] # prefix, checkpoint, targets, stages, dumps
echo "$n files"
