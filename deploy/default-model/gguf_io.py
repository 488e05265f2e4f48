"""Trained weights <-> the GGUF file that is served: python gguf_io.py export CHECKPOINT OUT.gguf [q8_0|f16|f32].

read() takes matrices of any type that the gguf package can dequantise, so that training can go on from the committed file.
"""
import sys

import numpy as np

ARCH = "gemma4"
NEVER = 1e30  # divides a full layer's angles: no rotation


def export(weights, c, path, kind="q8_0"):
    import gguf

    import tokens
    import wire
    v = tokens.build()
    assert len(v.tokens) == c["vocab"]
    w = gguf.GGUFWriter(path, ARCH)
    w.add_name("holdfast-tiny")
    w.add_description("A tiny model of a small world of tool calls. It knows nothing else.")
    w.add_file_type({"q8_0": gguf.LlamaFileType.MOSTLY_Q8_0, "f16": gguf.LlamaFileType.MOSTLY_F16, "f32": gguf.LlamaFileType.ALL_F32}[kind])
    w.add_quantization_version(2)
    w.add_float32("general.sampling.temp", 0.0)
    for key, value in [("context_length", c["context"]), ("embedding_length", c["dim"]), ("block_count", len(c["windowed"])),
                       ("feed_forward_length", c["ff"]), ("attention.head_count", c["heads"]), ("attention.key_length", c["hd_full"]),
                       ("attention.value_length", c["hd_full"]), ("attention.key_length_swa", c["hd"]), ("attention.value_length_swa", c["hd"]),
                       ("attention.sliding_window", c["window"]), ("attention.shared_kv_layers", 0), ("embedding_length_per_layer_input", 0),
                       ("rope.dimension_count", c["hd_full"]), ("rope.dimension_count_swa", c["hd"]), ("expert_count", c["experts"]),
                       ("expert_used_count", c["used"]), ("expert_feed_forward_length", c["expert_ff"])]:
        w.add_uint32(ARCH + "." + key, value)
    w.add_array(ARCH + ".attention.head_count_kv", [c["kv"] if s else c["kv_full"] for s in c["windowed"]])
    w.add_array(ARCH + ".attention.sliding_window_pattern", list(c["windowed"]))
    for key, value in [("attention.layer_norm_rms_epsilon", 1e-6), ("final_logit_softcapping", 30.0), ("rope.freq_base", 1e6), ("rope.freq_base_swa", 1e4)]:
        w.add_float32(ARCH + "." + key, value)
    w.add_tokenizer_model("gemma4")
    w.add_token_list(v.tokens)
    w.add_token_scores([-1000.0] * len(v.tokens))
    w.add_token_types(v.types)
    w.add_token_merges(v.merges)
    w.add_bos_token_id(v.ids["<bos>"])
    w.add_eos_token_id(v.ids["<eos>"])
    w.add_unk_token_id(v.ids["<unk>"])
    w.add_pad_token_id(v.ids["<pad>"])
    w.add_add_bos_token(True)
    w.add_add_space_prefix(False)
    w.add_chat_template(wire.TEMPLATE)

    def tensor(name, a, matrix=False):
        a = np.ascontiguousarray(a, np.float32)
        if matrix and kind == "q8_0":
            w.add_tensor(name, gguf.quantize(a, gguf.GGMLQuantizationType.Q8_0), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            w.add_tensor(name, a.astype(np.float16) if matrix and kind == "f16" else a)

    tensor("rope_freqs.weight", np.full(c["hd_full"] // 2, NEVER))
    for name, t in weights.items():
        a = t.detach().float().numpy()
        tensor(name, a, matrix=a.ndim > 1 and "gate_inp" not in name)
    for i in range(len(c["windowed"])):
        tensor("blk.%d.layer_output_scale.weight" % i, np.ones(1))
        tensor("blk.%d.ffn_down_exps.scale" % i, np.ones(c["experts"]))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def read(path):
    """(weights by name, config) of a file that export() wrote."""
    import gguf
    import torch

    import model
    r = gguf.GGUFReader(path)

    def get(key):
        return r.fields[ARCH + "." + key].contents()
    kv, windowed = get("attention.head_count_kv"), get("attention.sliding_window_pattern")
    weights = {t.name: torch.from_numpy(np.array(gguf.dequantize(t.data, t.tensor_type), np.float32)) for t in r.tensors}
    c = dict(dim=get("embedding_length"), vocab=weights["token_embd.weight"].shape[0], heads=get("attention.head_count"), ff=get("feed_forward_length"),
             experts=get("expert_count"), used=get("expert_used_count"), expert_ff=get("expert_feed_forward_length"),
             window=get("attention.sliding_window"), windowed=[bool(x) for x in windowed], hd=get("attention.key_length_swa"),
             hd_full=get("attention.key_length"), kv=kv[windowed.index(True)], kv_full=kv[windowed.index(False)], context=get("context_length"))
    return {n: weights[n].reshape(s) for n, s in model.shapes(c).items()}, c


def main():
    import train
    if len(sys.argv) < 4 or sys.argv[1] != "export":
        raise SystemExit(__doc__)
    weights, c = train.load(sys.argv[2])
    export(weights, c, sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else "q8_0")


if __name__ == "__main__":
    main()
