"""A model of the package transformers, with random weights, that calls tuned operators for a while."""

import sys

import torch
import transformers

import aot_tune.torch
from aot_tune import ops as kernels


def make_model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=500, hidden_size=128, intermediate_size=352, num_hidden_layers=2, num_attention_heads=4
    )
    return transformers.LlamaForCausalLM(config).eval()


def main():
    model = make_model()
    tokens = torch.randint(500, (1, 12))
    with torch.no_grad():
        expected = model(tokens).logits
        patched = aot_tune.torch.patch(model, kernels)
        logits = model(tokens).logits
        print(patched)
        compiled = torch.compile(model, fullgraph=True)
        torch.testing.assert_close(compiled(tokens).logits, expected, rtol=1e-4, atol=1e-4)
        patched.undo()
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
        with aot_tune.torch.patch(model, kernels, operators=["rms_norm", "silu_mul"], tuned=False) as few:
            torch.testing.assert_close(model(tokens).logits, expected, rtol=1e-4, atol=1e-4)
        print(sum(made.served for made in few.replaced), "calls went to operators")


if __name__ == "__main__":
    sys.exit(main())
