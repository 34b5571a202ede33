#!/usr/bin/env bash
# Small valid files for a fuzz program to start from, so that it gets past the first checks.
# Usage: tests/fuzz/seeds.sh NAME FOLDER
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$2"

le() { # le BYTES VALUE: little-endian
    local i hex
    for ((i = 0; i < $1; i++)); do
        printf -v hex '\\x%02x' $(($2 >> 8 * i & 255))
        # shellcheck disable=SC2059 # the format is the byte
        printf "$hex"
    done
}
str() { le 8 ${#1} && printf '%s' "$1"; }

gguf_u32() { str "$1" && le 4 4 && le 4 "$2"; }
gguf_f32() { str "$1" && le 4 6 && le 4 "$2"; } # the bits of the float
gguf_tensor() { # NAME TYPE OFFSET INNER OUTER
    str "$1" && le 4 2 && le 8 "$4" && le 8 "$5" && le 4 "$2" && le 8 "$3"
}
gguf() {
    printf GGUF && le 4 3 && le 8 3 && le 8 12
    str general.architecture && le 4 8 && str llama
    gguf_u32 llama.embedding_length 32
    gguf_u32 llama.block_count 1
    gguf_u32 llama.feed_forward_length 64
    gguf_u32 llama.attention.head_count 2
    gguf_u32 llama.attention.head_count_kv 1
    gguf_u32 llama.context_length 128
    gguf_f32 llama.attention.layer_norm_rms_epsilon $((0x3727c5ac))
    gguf_f32 llama.rope.freq_base $((0x461c4000))
    str tokenizer.ggml.model && le 4 8 && str llama
    str tokenizer.ggml.tokens && le 4 9 && le 4 8 && le 8 2 && str a && str bc
    str tokenizer.ggml.scores && le 4 9 && le 4 6 && le 8 2 && le 4 0 && le 4 0
    gguf_tensor token_embd.weight 0 0 32 2   # F32
    gguf_tensor blk.0.attn_q.weight 3 256 32 2 # Q4_1
    gguf_tensor output_norm.weight 8 320 32 1  # Q8_0
    head -c 1024 /dev/zero
}
config='{"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":64,"intermediate_size":172,"num_hidden_layers":5,
"num_attention_heads":8,"num_key_value_heads":4,"vocab_size":512,"max_position_embeddings":512,"rms_norm_eps":1e-05,"rope_theta":10000.0,
"hidden_act":"silu","tie_word_embeddings":true,"attention_bias":false,"torch_dtype":"float32","bos_token_id":1,"eos_token_id":[2,3],
"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192}}'
tensors='{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},"c":{"dtype":"F16","shape":[],"data_offsets":[32,34]}}'
tokenizer='{"version":"1.0","added_tokens":[{"id":3,"content":"<s>","special":true}],"normalizer":{"type":"NFC"},
"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},"post_processor":null,
"decoder":{"type":"ByteLevel"},"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}}'

[ ! -d "$root/tests/fuzz/seeds/$1" ] || cp "$root/tests/fuzz/seeds/$1"/* .
case $1 in
fuzz_gguf) gguf >llama ;;
fuzz_config) printf '%s' "$config" >llama ;;
fuzz_json) printf '%s' "$config" >config ;;
fuzz_tokenizer*) printf '%s' "$tokenizer" >bpe && gguf >llama ;;
fuzz_elf) printf 'const char brick_plugin[] = "a variable with bytes";\n' | cc -x c -shared -nostdlib -o plugin.so - ;;
fuzz_inspect) cp "$root"/tests/fuzz/seeds/fuzz_store/* . ;;
fuzz_safetensors)
    { str "$tensors" && head -c 34 /dev/zero; } >three
    ;;
fuzz_schema) for file in "$root"/configs/*.yaml; do [ ! -e "$file" ] || cp "$file" .; done ;;
esac
