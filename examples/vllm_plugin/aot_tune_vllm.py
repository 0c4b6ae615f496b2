"""A plug-in of vLLM whose layers call tuned operators: norms, gates and the rounding of rows to 8 bits."""

import torch

import aot_tune.torch


def register(kernels=None):
    """Replace layers for which the library `kernels` (by default `aot_tune.ops`) has an operator."""
    from vllm.model_executor.custom_op import CustomOp
    from vllm.model_executor.layers.activation import SiluAndMul
    from vllm.model_executor.layers.layernorm import RMSNorm
    from vllm.model_executor.layers.quantization.input_quant_fp8 import QuantFP8

    if kernels is None:
        import aot_tune.ops as kernels
    ops = getattr(torch.ops, aot_tune.torch.register(kernels).namespace)

    @CustomOp.register_oot(name="RMSNorm")
    class TunedNorm(RMSNorm):
        def forward_cuda(self, x, residual=None):
            if self.variance_size_override is not None or self.weight.dtype != x.dtype:
                return super().forward_cuda(x, residual)
            if residual is None:
                return ops.rms_norm(x, self.weight, eps=self.variance_epsilon)
            return ops.rms_norm.all_outputs(x, self.weight, residual, eps=self.variance_epsilon)

    @CustomOp.register_oot(name="SiluAndMul")
    class TunedGate(SiluAndMul):
        def forward_cuda(self, x):
            width = x.shape[-1] // 2
            return ops.silu_mul(x[..., :width], x[..., width:])

    if "quantize_rows" not in kernels.operators:  # AOT_TUNE_OPERATORS adds it
        return

    @CustomOp.register_oot(name="QuantFP8")
    class TunedRounding(QuantFP8):
        def forward_cuda(self, x, scale=None, scale_ub=None):
            by_rows = self.is_group_quant or self.use_per_token_if_dynamic
            if self.static or scale_ub is not None or self.num_token_padding is not None or not by_rows:
                return super().forward_cuda(x, scale, scale_ub)
            if self.is_group_quant and self.use_ue8m0 is None:  # vLLM decides, by what will read the scales
                return super().forward_cuda(x, scale, scale_ub)
            out = torch.empty_like(x, dtype=torch.float8_e4m3fn)
            group = self.group_size if self.is_group_quant else x.shape[-1]
            scale = torch.empty(*x.shape[:-1], -(-x.shape[-1] // group), dtype=torch.float32, device=x.device)
            if self.is_group_quant and self.column_major_scales:
                scale = scale.transpose(-1, -2).contiguous().transpose(-1, -2)
            # What vLLM takes for the largest magnitude at least, so that its scales are ours.
            least = 1e-10 if self.is_group_quant else 1 / 512
            rounded = "powers_of_two" if self.is_group_quant and self.use_ue8m0 else "exact"
            ops.quantize_rows.out(x, group=group, min_amax=least, scales=rounded, out=out, scale=scale)
            return out, scale
