"""PyTorch's products and attention on the shapes of kernels_gpu, in bf16: gpu_torch.py, with the lines of `kernels_gpu --list` on its input. Prints
Markdown. Exits 77, with the reason, when there is no PyTorch that can use a GPU."""
import json
import statistics
import sys

ROUNDS, MOST = 7, 450


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def main():
    shapes = [json.loads(line) for line in sys.stdin if line.strip()]
    try:
        import torch
    except ImportError:
        skip("python3 has no PyTorch")
    if not torch.cuda.is_available():
        skip(f"PyTorch {torch.__version__} finds no GPU that it can use")

    def seconds(call, calls):
        """Median of one of so many calls, by events; what was enqueued before the first event lets the calls pile up."""
        for i in range(3):
            call(i)
        times = []
        for _ in range(ROUNDS):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            torch.cuda._sleep(20_000_000)  # about 10 ms, in which the host gets ahead
            begin.record()
            for i in range(calls):
                call(i)
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / 1000 / calls)
        return statistics.median(times)

    print(f"PyTorch {torch.__version__}, bf16, on {torch.cuda.get_device_name()}\n")
    print("| what | model | shape | rows | us | GB/s | TFLOP/s |\n| --- | --- | --- | --- | --- | --- | --- |")
    for s in shapes:
        if s["kind"] == "product":
            rows, out, width = s["rows"], s["out"], s["in"]
            copies = max(1, min(MOST, (256 << 20) // (2 * out * width)))
            x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
            weights = [torch.randn(out, width, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
            took = seconds(lambda i: torch.nn.functional.linear(x, weights[i % copies]), max(copies, 8))
            read, flops, shape, what = 2 * out * width, 2 * rows * out * width, f"{out} x {width}", "product"
            del weights
        else:
            # SDPA has no paged cache and no window: the same keys in one piece, which a window leaves out.
            keys = s["start"] + s["rows"]
            if s["window"] and s["rows"] == 1:
                keys = min(keys, s["window"])
            if s["window"] and s["rows"] > 1 or s["rows"] > 1 and s["start"] > 0:
                continue
            n, dim = s["requests"], s["dim"]
            q = torch.randn(n, s["heads"], s["rows"], dim, device="cuda", dtype=torch.bfloat16)
            k, v = (torch.randn(n, s["kv_heads"], keys, dim, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            call = lambda i: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=s["rows"] > 1, enable_gqa=True)  # noqa: E731
            try:
                took = seconds(call, 20)
            except (RuntimeError, TypeError) as e:
                print(f"| attention | {s['model']} | {s['heads']} on {s['kv_heads']} of {dim}, {keys} keys | {s['rows']} x {n} | not measured: {str(e).splitlines()[0]} | - | - |")
                continue
            read = 2 * 2 * n * keys * s["kv_heads"] * dim
            flops = 4 * n * s["heads"] * dim * (keys * (keys + 1) / 2 if s["rows"] > 1 else keys)
            shape, what = f"{s['heads']} on {s['kv_heads']} of {dim}, {keys} keys", "attention"
            rows = f"{s['rows']} x {n}"
        print(f"| {what} | {s['model']} | {shape} | {rows} | {took * 1e6:.1f} | {read / took / 1e9:.0f} | {flops / took / 1e12:.1f} |", flush=True)


main()
