#!/usr/bin/env python3
"""The attention kernels on an NVIDIA GPU: compared with fp64, and timed beside torch's scaled_dot_product_attention.

Needs python3 with torch and numpy; NVRTC and the driver are those that torch uses. Nothing is built.

usage: tests/gpu_attention.py              compare and time
       tests/gpu_attention.py --compare    compare only
       tests/gpu_attention.py --small      run a few small shapes without torch, for compute-sanitizer
"""

import concurrent.futures
import ctypes
import glob
import importlib.util
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
NAMES = ("kernels.cu", "attention.cu", "attention_forward.cu", "attention_backward.cu")
SOURCES = [os.path.join(HERE, "..", "src", "pipe-trainer", "torch", name) for name in NAMES]
THREADS = 128


# --- The driver and NVRTC, as cuda.hpp finds them -----------------------------------------------------------------------


def libraries():
    spec = importlib.util.find_spec("torch")
    folder = os.path.join(os.path.dirname(spec.origin), "lib") if spec else ""
    packages = os.path.join(os.path.dirname(os.path.dirname(spec.origin)), "nvidia") if spec else ""
    driver = ctypes.CDLL("libcuda.so.1")
    found = lambda name: glob.glob(f"{packages}/**/{name}", recursive=True) if packages else []  # noqa: E731
    names = found("libnvrtc.so.*") + [f"{folder}/libcaffe2_nvrtc.so", "libnvrtc.so"] + glob.glob("/usr/local/cuda*/lib64/libnvrtc.so")
    for builtins in found("libnvrtc-builtins.so.*"):
        if ".alt." not in builtins:
            ctypes.CDLL(builtins, ctypes.RTLD_GLOBAL)
    for name in names:
        if ".alt." in name:
            continue
        try:
            return driver, ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
        except OSError:
            continue
    sys.exit("no NVRTC was found")


CUDA, NVRTC = libraries()


def check(status, what):
    if status:
        raise RuntimeError(f"{what} failed with {status}")


def compute_capability():
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    check(CUDA.cuCtxGetDevice(ctypes.byref(device)), "cuCtxGetDevice")
    check(CUDA.cuDeviceGetAttribute(ctypes.byref(major), 75, device), "cuDeviceGetAttribute")
    check(CUDA.cuDeviceGetAttribute(ctypes.byref(minor), 76, device), "cuDeviceGetAttribute")
    return major.value * 10 + minor.value


def compile_kernel(source, expression, capability):
    """The machine code of a kernel and its name in there."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    check(NVRTC.nvrtcCreateProgram(ctypes.byref(program), source, b"attention.cu", 0, None, None), "nvrtcCreateProgram")
    check(NVRTC.nvrtcAddNameExpression(program, expression.encode()), "nvrtcAddNameExpression")
    options = [f"--gpu-architecture=sm_{capability}".encode(), b"--std=c++17", b"-lineinfo"]
    if NVRTC.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options)):
        NVRTC.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        NVRTC.nvrtcGetProgramLog(program, log)
        sys.exit(f"{expression} cannot be compiled:\n{log.value.decode()}")
    check(NVRTC.nvrtcGetCUBINSize(program, ctypes.byref(size)), "nvrtcGetCUBINSize")
    image = ctypes.create_string_buffer(size.value)
    check(NVRTC.nvrtcGetCUBIN(program, image), "nvrtcGetCUBIN")
    name = ctypes.c_char_p()
    check(NVRTC.nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(name)), "nvrtcGetLoweredName")
    return image, name.value


class Kernels:
    def __init__(self):
        self.source = "".join(open(path).read() for path in SOURCES).encode()
        self.capability = compute_capability()
        self.known = {}

    def prepare(self, expressions):
        new = sorted(set(expressions) - set(self.known))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            images = list(pool.map(lambda name: compile_kernel(self.source, name, self.capability), new))
        for expression, (image, name) in zip(new, images):
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            check(CUDA.cuModuleLoadData(ctypes.byref(module), image), "cuModuleLoadData")
            check(CUDA.cuModuleGetFunction(ctypes.byref(function), module, name), "cuModuleGetFunction")
            self.known[expression] = function

    def launch(self, expression, grid, shared, argument, stream=None):
        function = self.known[expression]
        if shared > 48 * 1024:
            check(CUDA.cuFuncSetAttribute(function, 8, shared), "cuFuncSetAttribute")
        parameters = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(argument), ctypes.c_void_p))
        check(CUDA.cuLaunchKernel(function, *grid, THREADS, 1, 1, shared, stream, parameters, None), expression)


# --- Arguments and shapes, as in attention.cu -----------------------------------------------------------------------------


class AttentionTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("batch", ctypes.c_int64), ("head", ctypes.c_int64), ("row", ctypes.c_int64)]


class AttentionDropout(ctypes.Structure):
    _fields_ = [("key", ctypes.c_uint64), ("threshold", ctypes.c_uint32), ("kept", ctypes.c_float), ("first_sample", ctypes.c_uint32),
                ("place", ctypes.c_void_p)]


class AttentionArguments(ctypes.Structure):
    _fields_ = (
        [(name, AttentionTensor) for name in ("q", "k", "v", "o", "d_o", "d_q", "d_k", "d_v")]
        + [(name, ctypes.c_void_p) for name in ("bias", "lengths", "lse", "rows", "d_bias_blocks", "d_bias", "q_offsets", "k_offsets", "q_tiles", "k_tiles")]
        + [(name, ctypes.c_uint32) for name in ("batch", "heads", "queries", "keys", "width", "distances", "origin", "tiles", "sums", "is_causal")]
        + [("scale", ctypes.c_float), ("shared", ctypes.c_uint32), ("dropout", AttentionDropout)]
    )


def dropout_of(share, seed, first_sample):
    threshold = round(share * 65536)
    return AttentionDropout(seed, threshold, 65536 / (65536 - threshold), first_sample)


def blocks(count, size):
    return (count + size - 1) // size


def bias_positions(keys):
    return blocks(keys, 32) * 32 + 128


class Plan:
    """Names, grids and shared memory of the kernels for one shape."""

    def __init__(self, kind, width, has_bias, drops, batch, heads, queries, keys):
        padded = next(size for size in (32, 64, 96, 128) if size >= width)
        pitch = 2 * (padded + 8)
        names = f"<{kind}, {padded}, {str(has_bias).lower()}, {str(drops).lower()}>"
        tile = 64 if padded <= 64 else 32
        forward = 4 * tile * pitch + (0 if padded <= 64 else 128 * pitch) + 2 * (128 + tile) * 4
        key_rows = 128 if padded <= 64 else 64
        of_keys = 2 * key_rows * pitch + 2 * (2 * 32 * pitch + 2 * 32 * 4) + 2 * (32 + key_rows) * 4
        of_queries = 2 * 128 * pitch + (4 if padded <= 96 else 2) * 32 * pitch + ((2 * (128 + 32) + 4 * 8 * 72 + 4 * 2 * 32) * 4 if has_bias else 0)
        self.forward = ("attention_forward" + names, (blocks(queries, 128), heads, batch), forward)
        self.backward = [
            (f"attention_backward_rows<{kind}>", (blocks(queries, 8), heads, batch), 0),
            ("attention_backward_keys" + names, (blocks(keys, key_rows), heads, batch), of_keys),
            ("attention_backward_queries" + names, (blocks(queries, 128), heads, batch), of_queries),
        ]
        if has_bias:
            self.backward.append(("attention_bias_sum", (blocks(queries + keys - 1, THREADS), heads, 1), 0))

    def names(self):
        return [self.forward[0]] + [kernel[0] for kernel in self.backward]


assert ctypes.sizeof(AttentionArguments) == 416, "as in attention.cu"


# --- Small shapes without torch ---------------------------------------------------------------------------------------------


def small():
    """Every tensor is an allocation of its own, so that compute-sanitizer sees a step over its end."""
    import numpy

    context, device = ctypes.c_void_p(), ctypes.c_int()
    check(CUDA.cuInit(0), "cuInit")
    check(CUDA.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    check(CUDA.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    check(CUDA.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    kernels = Kernels()
    random = numpy.random.default_rng(1)

    def upload(values):
        pointer = ctypes.c_uint64()
        check(CUDA.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(max(values.nbytes, 1))), "cuMemAlloc")
        check(CUDA.cuMemcpyHtoD_v2(pointer, values.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(values.nbytes)), "cuMemcpyHtoD")
        return pointer.value

    cases = [
        ("F16", 64, True, 0.1, 2, 2, 133, 133, True), ("F16", 64, True, 0.1, 1, 2, 70, 203, False), ("BF16", 128, True, 0.1, 1, 1, 97, 65, False),
        ("F16", 96, False, 0.1, 2, 1, 40, 129, False), ("F16", 24, False, 0.0, 2, 1, 200, 31, True), ("F16", 64, False, 0.1, 1, 1, 130, 1, False),
    ]
    plans = [Plan(kind, width, has_bias, share > 0, b, h, lq, lk) for kind, width, has_bias, share, b, h, lq, lk, _ in cases]
    kernels.prepare([name for plan in plans for name in plan.names()])
    for (kind, width, has_bias, share, b, h, lq, lk, causal), plan in zip(cases, plans):
        def tensor(length):
            values = random.standard_normal((b, length, h, width)).astype(numpy.float16)
            return AttentionTensor(upload(values), length * h * width, width, h * width)

        def floats(count):
            return upload(random.standard_normal(count).astype(numpy.float32))

        a = AttentionArguments(
            batch=b, heads=h, queries=lq, keys=lk, width=width, distances=lq + lk - 1, origin=lq - 1, is_causal=causal, scale=0.1, shared=1,
            dropout=dropout_of(share, 5, 3),
        )
        for name in ("q", "o", "d_o", "d_q"):
            setattr(a, name, tensor(lq))
        for name in ("k", "v", "d_k", "d_v"):
            setattr(a, name, tensor(lk))
        a.lengths = upload(numpy.array([lk, lk // 2][:b], dtype=numpy.int32))
        a.lse, a.rows = floats(b * h * lq), floats(2 * b * h * lq)
        if has_bias:
            a.bias, a.d_bias = floats(h * (lq + lk - 1)), floats(h * (lq + lk - 1))
            a.d_bias_blocks = floats(b * h * blocks(lq, 128) * bias_positions(lk))
        for kernel in [plan.forward] + plan.backward:
            kernels.launch(*kernel, a)
        check(CUDA.cuCtxSynchronize(), "cuCtxSynchronize")
        print(f"ran {kind} B{b} H{h} {lq}x{lk} D{width}", flush=True)


# --- With torch ---------------------------------------------------------------------------------------------------------------

if "--small" in sys.argv:
    small()
    sys.exit(0)

import torch  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention as sdpa  # noqa: E402


class Attention:
    """The kernels for tensors [batch, heads, length, width] of torch."""

    def __init__(self, kernels, q, k, v, bias=None, lengths=None, scale=1.0, causal=False, share=0.0, seed=1, first_sample=0):
        batch, heads, queries, width = q.shape
        keys = k.shape[2]
        kind = {torch.bfloat16: "BF16", torch.float16: "F16"}[q.dtype]
        self.kernels, self.plan = kernels, Plan(kind, width, bias is not None, share > 0, batch, heads, queries, keys)
        kernels.prepare(self.plan.names())
        empty = lambda length: torch.full((batch, length, heads, width), float("nan"), dtype=q.dtype, device="cuda")  # noqa: E731
        floats = lambda *shape: torch.full(shape, float("nan"), device="cuda")  # noqa: E731
        self.o, self.d_q, self.d_k, self.d_v = empty(queries), empty(queries), empty(keys), empty(keys)
        self.lse, self.rows = floats(batch, heads, queries), floats(batch, heads, queries, 2)
        self.d_bias = floats(heads, queries + keys - 1) if bias is not None else None
        self.parts = floats(batch, heads, blocks(queries, 128), bias_positions(keys)) if bias is not None else None
        self.kept = [q, k, v, bias, lengths]
        self.arguments = AttentionArguments(
            batch=batch, heads=heads, queries=queries, keys=keys, width=width, distances=queries + keys - 1, origin=queries - 1,
            is_causal=causal, scale=scale, shared=1, dropout=dropout_of(share, seed, first_sample), lse=self.lse.data_ptr(), rows=self.rows.data_ptr(),
        )
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            setattr(self.arguments, name, self.view(tensor))
        for name in ("o", "d_q", "d_k", "d_v"):
            setattr(self.arguments, name, self.view(getattr(self, name).transpose(1, 2)))
        if bias is not None:
            self.arguments.bias, self.arguments.d_bias = bias.data_ptr(), self.d_bias.data_ptr()
            self.arguments.d_bias_blocks = self.parts.data_ptr()
        if lengths is not None:
            self.arguments.lengths = lengths.data_ptr()

    @staticmethod
    def view(tensor):
        assert tensor.stride(3) == 1 and tensor.data_ptr() % 16 == 0
        return AttentionTensor(tensor.data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2))

    def forward(self):
        self.kernels.launch(*self.plan.forward, self.arguments)
        return self.o

    def take(self, d_o):
        """`d_o` is [batch, length, heads, width]."""
        self.kept.append(d_o)
        self.arguments.d_o = self.view(d_o.transpose(1, 2))

    def backward(self, only=None):
        for kernel in self.plan.backward:
            if only is None or kernel[0].startswith(only):
                self.kernels.launch(*kernel, self.arguments)


def kept_weights(share, seed, first_sample, batch, heads, queries, keys):
    """The factors of dropout by its formula, [batch, heads, queries, keys]."""
    low = 0xFFFFFFFF
    b = torch.arange(batch, device="cuda").view(-1, 1, 1, 1)
    h = torch.arange(heads, device="cuda").view(1, -1, 1, 1)
    i = torch.arange(queries, device="cuda").view(1, 1, -1, 1)
    j = torch.arange(keys, device="cuda").view(1, 1, 1, -1)
    lane, e = (i % 8) * 4 + (j % 8) // 2, 4 * ((j % 16) // 8) + 2 * ((i % 16) // 8) + j % 2
    zero = torch.zeros((), dtype=torch.int64, device="cuda")
    c0, c1, c2, c3 = (j // 16) * 32 + lane, i // 16 + zero, first_sample + b, h + 1
    k0, k1 = seed & low, seed >> 32
    for _ in range(7):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = ((p1 >> 32) & low) ^ c1 ^ k0, p1 & low, ((p0 >> 32) & low) ^ c3 ^ k1, p0 & low
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    words = torch.where(e // 2 == 0, c0, torch.where(e // 2 == 1, c1, torch.where(e // 2 == 2, c2, c3)))
    values = (words >> (16 * (e % 2))) & 0xFFFF
    threshold = round(share * 65536)
    return torch.where(values < threshold, 0.0, 65536 / (65536 - threshold)).double()


def reference(q, k, v, bias, lengths, scale, causal, factors):
    """In fp64; [batch, length, heads, width]."""
    batch, heads, queries, _ = q.shape
    keys = k.shape[2]
    i, j = torch.arange(queries, device="cuda").view(-1, 1), torch.arange(keys, device="cuda").view(1, -1)
    scores = q @ k.transpose(2, 3) * scale
    if bias is not None:
        scores = scores + bias[:, j - i + queries - 1]
    hidden = torch.zeros(batch, 1, queries, keys, dtype=torch.bool, device="cuda")
    if lengths is not None:
        hidden = hidden | (j >= lengths.view(-1, 1, 1, 1))
    if causal:
        hidden = hidden | (j > i + keys - queries)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1).nan_to_num(0).masked_fill(hidden, 0)
    if factors is not None:
        weights = weights * factors
    return (weights @ v).transpose(1, 2)


def apart(got, want):
    return ((got.double() - want).norm() / want.norm().clamp_min(1e-12)).item()


def random_heads(batch, heads, length, width, dtype, strided):
    """[batch, heads, length, width], split from [batch, length, heads * width] or a slice of three of those."""
    columns = heads * width
    whole = torch.randn(batch, length, columns * (3 if strided else 1), device="cuda").to(dtype)
    return whole[..., :columns].unflatten(-1, (heads, width)).transpose(1, 2)


def compare(kernels):
    shapes = [  # batch, heads, queries, keys, width, dtype, causal, bias, lengths, share
        (2, 4, 512, 512, 64, torch.bfloat16, False, True, True, 0.1),
        (2, 4, 509, 509, 64, torch.bfloat16, False, True, True, 0.0),
        (2, 2, 2048, 2048, 64, torch.bfloat16, True, True, False, 0.1),
        (1, 2, 2047, 1031, 64, torch.float16, False, True, False, 0.1),
        (3, 4, 128, 512, 64, torch.bfloat16, False, False, True, 0.1),
        (3, 4, 131, 131, 64, torch.float16, True, True, False, 0.0),
        (2, 4, 384, 384, 64, torch.bfloat16, False, False, True, 0.0),
        (2, 2, 700, 700, 128, torch.bfloat16, True, True, True, 0.1),
        (2, 2, 1000, 333, 128, torch.float16, False, False, True, 0.0),
        (2, 3, 300, 500, 96, torch.bfloat16, True, False, False, 0.1),
        (2, 3, 257, 257, 80, torch.float16, False, True, True, 0.0),
        (2, 3, 600, 600, 32, torch.bfloat16, True, False, True, 0.1),
        (4, 2, 1, 400, 40, torch.bfloat16, False, True, True, 0.0),
        (1, 1, 4096, 4096, 64, torch.bfloat16, True, True, False, 0.0),
    ]
    rows, failed = [], 0
    for number, (batch, heads, queries, keys, width, dtype, causal, has_bias, ragged, share) in enumerate(shapes):
        torch.manual_seed(number)
        q = random_heads(batch, heads, queries, width, dtype, number % 2)
        k, v = (random_heads(batch, heads, keys, width, dtype, number % 2) for _ in range(2))
        bias = torch.randn(heads, queries + keys - 1, device="cuda") * 2 if has_bias else None
        lengths = torch.randint(0, keys + 1, (batch,), device="cuda", dtype=torch.int32) if ragged else None
        scale, seed, first = width**-0.5, 0x1234567890AB + number, 11 * number
        d_o = torch.randn(batch, queries, heads, width, device="cuda").to(dtype)
        ours = Attention(kernels, q, k, v, bias, lengths, scale, causal, share, seed, first)
        ours.take(d_o)
        ours.forward()
        ours.backward()
        outputs = [ours.o, ours.lse, ours.d_q, ours.d_k, ours.d_v] + ([ours.d_bias] if has_bias else [])
        copies = [t.clone() for t in outputs]
        ours.forward()
        ours.backward()
        same = all(torch.equal(a, b) for a, b in zip(copies, outputs))
        inputs = [t.double().detach().requires_grad_() for t in (q, k, v)] + ([bias.double().requires_grad_()] if has_bias else [])
        factors = kept_weights(share, seed, first, batch, heads, queries, keys) if share else None
        out = reference(*inputs[:3], inputs[3] if has_bias else None, lengths, scale, causal, factors)
        gradients = torch.autograd.grad(out, inputs, d_o.double())
        got = [ours.o, ours.d_q.transpose(1, 2), ours.d_k.transpose(1, 2), ours.d_v.transpose(1, 2)] + ([ours.d_bias] if has_bias else [])
        errors = [apart(a, b) for a, b in zip(got, [out, *gradients])]
        limit = 8e-3 if dtype == torch.bfloat16 else 1e-3
        good = same and all(error < limit for error in errors)
        failed += not good
        name = f"{str(dtype)[6:]:8} B{batch} H{heads} {queries}x{keys} D{width}{' causal' * causal}{' bias' * has_bias}{' lengths' * ragged}{' dropout' * (share > 0)}"
        rows.append(f"{'ok    ' if good else 'FAILED'} {name:62} " + " ".join(f"{error:.1e}" for error in errors) + ("" if same else "  NOT DETERMINISTIC"))
        del inputs, factors, out, gradients
    print("relative errors of o, dq, dk, dv, dbias against fp64")
    print("\n".join(rows), flush=True)
    return failed


def microseconds(call, calls=10, rounds=7):
    """The median time of a call, several queued at a time."""
    for _ in range(3):
        call()
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / calls)
    return sorted(times)[rounds // 2]


def torch_times(q, k, v, mask, d_o, share, causal, backend=None):
    """Forward and backward of torch; the mask's gradient too where it needs one."""
    inputs = [q.detach().requires_grad_(), k.detach().requires_grad_(), v.detach().requires_grad_()]
    if mask is not None and mask.requires_grad:
        inputs.append(mask)
    try:
        with sdpa_kernel(backend or [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]):
            call = lambda: sdpa(*inputs[:3], attn_mask=mask, dropout_p=share, is_causal=causal, scale=1.0)  # noqa: E731
            forward = microseconds(call)
            out = call()
            backward = microseconds(lambda: torch.autograd.grad(out, inputs, d_o.transpose(1, 2), retain_graph=True))
        return forward, backward
    except RuntimeError as error:
        print("torch:", str(error)[:200])
        return float("nan"), float("nan")


def measure(kernels):
    shapes = [  # name, batch, heads, queries, keys, width, causal, bias
        ("T5-XL encoder", 8, 32, 512, 512, 64, False, True),
        ("T5-base encoder", 32, 12, 512, 512, 64, False, True),
        ("T5-XL encoder, odd", 8, 32, 509, 509, 64, False, True),
        ("T5-XL decoder", 8, 32, 128, 128, 64, True, True),
        ("T5-XL cross", 8, 32, 128, 512, 64, False, False),
        ("BERT-large", 16, 16, 384, 384, 64, False, False),
        ("width 128, causal", 4, 16, 2048, 2048, 128, True, False),
    ]
    wanted = [Plan("BF16", s[5], s[7], drops, *s[1:5]) for s in shapes for drops in (False, True)]
    kernels.prepare([name for plan in wanted for name in plan.names()])
    lines = [
        f"{'microseconds, bf16':20} {'drop':>4} | {'ours':^42} | {'torch, expanded bias':^20} | {'torch flash, no bias':^20}",
        f"{'':20} {'':>4} | {'forward':>8} {'backward':>8} {'dk,dv':>7} {'dq':>7} {'TF/s':>4} {'TF/s':>4} | {'forward':>9} {'backward':>9} | {'forward':>9} {'backward':>9}",
    ]
    for name, batch, heads, queries, keys, width, causal, has_bias in shapes:
        torch.manual_seed(1)
        q = random_heads(batch, heads, queries, width, torch.bfloat16, False)
        k, v = (random_heads(batch, heads, keys, width, torch.bfloat16, False) for _ in range(2))
        q = q * 0.125
        d_o = torch.randn(batch, queries, heads, width, device="cuda").bfloat16()
        bias = torch.randn(heads, queries + keys - 1, device="cuda") if has_bias else None
        lengths = torch.full((batch,), keys, device="cuda", dtype=torch.int32)
        i, j = torch.arange(queries, device="cuda").view(-1, 1), torch.arange(keys, device="cuda").view(1, -1)
        mask = torch.zeros(batch, 1, 1, keys, device="cuda", dtype=torch.bfloat16)
        if has_bias:
            mask = bias[:, j - i + queries - 1].bfloat16()[None] + mask
            if causal:
                mask = mask.masked_fill(j > i, float("-inf"))
            mask = mask.expand(batch, heads, queries, keys).contiguous().requires_grad_()
        elif causal:
            mask = None
        for share in (0.0, 0.1):
            ours = Attention(kernels, q, k, v, bias, lengths, 1.0, causal, share)
            ours.take(d_o)
            forward = microseconds(ours.forward)
            backward = microseconds(ours.backward)
            parts = [microseconds(lambda: ours.backward(only)) for only in ("attention_backward_keys", "attention_backward_queries")]
            work = 4e-6 * batch * heads * queries * keys * width * (0.5 if causal else 1)
            today = torch_times(q, k, v, mask, d_o, share, causal and mask is None)
            flash = torch_times(q, k, v, None, d_o, share, causal, SDPBackend.FLASH_ATTENTION)
            lines.append(
                f"{name:20} {share:4} | {forward:8.1f} {backward:8.1f} {parts[0]:7.1f} {parts[1]:7.1f} {work / forward:4.0f} {2.5 * work / backward:4.0f} | "
                f"{today[0]:9.1f} {today[1]:9.1f} | {flash[0]:9.1f} {flash[1]:9.1f}"
            )
            print(lines[-1], flush=True)
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    print("\n".join(lines))


def main():
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    kernels = Kernels()
    began = time.time()
    failed = compare(kernels)
    print(f"compared in {time.time() - began:.0f} s", flush=True)
    if "--compare" not in sys.argv:
        measure(kernels)
    print("FAILED" if failed else "ok")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
