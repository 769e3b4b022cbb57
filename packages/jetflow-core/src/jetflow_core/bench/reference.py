"""The plain side of the lossless check: transformers' own greedy generate, in its own process.

Nothing of this package takes part: the model is loaded by transformers with its own attention, the
prompts are encoded here, and the answer is what ``generate`` returns. Run as

    python -m jetflow_core.bench.reference JOB.json ANSWERS.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Plain greedy answers.

    Args:
        job: target (folder or hub name), dtype, device, max_new_tokens, prompts (texts).

    Returns:
        answers, one for each prompt: prompt (token ids), tokens (new token ids, a stop token
        included) and gaps (best logit less second best, where each token was picked); and
        settings that say how they were made.
    """
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.backends.cudnn.fp32_precision = "ieee"
    dtype = getattr(torch, job["dtype"])
    tokenizer = AutoTokenizer.from_pretrained(job["target"], trust_remote_code=False)
    model = AutoModelForCausalLM.from_pretrained(
        job["target"], dtype=dtype, trust_remote_code=False
    )
    model.eval().to(job["device"])
    model.generation_config = _greedy(model.generation_config)
    answers = []
    for text in job["prompts"]:
        answers.append(_one(model, _encode(tokenizer, text), job["max_new_tokens"]))
        print(len(answers), flush=True)
    return {
        "answers": answers,
        "settings": {
            "attention": model.config._attn_implementation,
            "dtype": str(model.dtype).removeprefix("torch."),
            "fp32_precision": torch.backends.cuda.matmul.fp32_precision,
            "torch": torch.__version__,
        },
    }


def _encode(tokenizer: Any, text: str) -> list[int]:
    if not tokenizer.chat_template:
        return list(tokenizer.encode(text))
    message = [{"role": "user", "content": text}]
    chat = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    return list(tokenizer.encode(chat, add_special_tokens=False))


def _greedy(own: GenerationConfig) -> GenerationConfig:
    """Plain greedy decoding: of a model's own defaults, which may penalise, only the end stays."""
    return GenerationConfig(
        do_sample=False, num_beams=1, eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id,
        bos_token_id=own.bos_token_id,
    )  # fmt: skip


def _one(model: Any, prompt: list[int], max_new_tokens: int) -> dict[str, list[Any]]:
    ids = torch.tensor([prompt], device=model.device)
    result = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_new_tokens,
        output_logits=True,
        return_dict_in_generate=True,
    )
    tokens = result.sequences[0, len(prompt) :].tolist()
    logits = torch.cat(result.logits).float()
    best = logits.topk(2, dim=-1).values
    return {"prompt": prompt, "tokens": tokens, "gaps": (best[:, 0] - best[:, 1]).tolist()}


def main() -> None:
    """Reads a job, writes its answers; both paths are arguments."""
    job_file, answers_file = map(Path, sys.argv[1:3])
    job = json.loads(job_file.read_text(encoding="utf-8"))
    if threads := job.get("threads"):
        torch.set_num_threads(threads)
    found = answer(job)
    partial = answers_file.with_suffix(".partial")
    partial.write_text(json.dumps(found), encoding="utf-8")
    partial.replace(answers_file)


if __name__ == "__main__":
    main()
