"""Answers of a causal language model that reads what was found."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from m2dr.core.errors import UserError

# ESE, table 3, with its placeholders.
PROMPT = """As an advanced QA system, your role is to provide accurate and straightforward answers \
based on the provided context. Utilize the following information to answer the given question, \
directly output the straightforward answer, and do not explain it:
Context: {context}.
Question: {question}.
Requirement: For ‘yes/no’ question, directly output ‘yes’ or ‘no’. For the ‘who’ question, \
directly output the people’s names. For the ‘when’ question, directly output the date or time, so \
on and so forth.
Output:"""


class Generator:
    """A causal language model from a folder, decoding greedily."""

    def __init__(self, folder: Path, tokens: int, device: str = "auto") -> None:
        """Load it.

        Args:
            folder: as transformers writes it; nothing is fetched, and no code of it is run.
            tokens: of an answer, at most.
            device: auto, cpu, cuda or cuda:N.

        Raises:
            UserError: the folder holds no causal language model.
        """
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from m2dr.model.devices import choose_device

        self.tokens, self.device = tokens, choose_device(device)
        if not (folder / "config.json").exists():
            raise UserError(
                f"--generator takes a folder with a causal language model; {folder} has no "
                "config.json."
            )
        try:
            self.model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{folder} opens as no causal language model: {reason}") from error
        self.model.to(self.device).eval()
        self.room = int(self.model.config.max_position_embeddings) - tokens

    def answer(self, question: str, contexts: Sequence[str]) -> str:
        """The first line that the model writes."""
        import torch

        ids = self._ids(question, " ".join(contexts))
        batch = torch.tensor([ids], device=self.device)
        end = self.tokenizer.eos_token_id
        with torch.inference_mode():
            written = self.model.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                max_new_tokens=self.tokens,
                do_sample=False,
                num_beams=1,
                pad_token_id=self.tokenizer.pad_token_id or end or 0,
            )
        text = self.tokenizer.decode(written[0, len(ids) :], skip_special_tokens=True)
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[0] if lines else ""

    def _ids(self, question: str, context: str) -> list[int]:
        """The prompt; where it is too long the context loses its end, never the question."""
        before, after = PROMPT.format(context="\0", question=question).split("\0")
        encode = self.tokenizer.encode
        head = encode(before)
        middle, tail = (encode(text, add_special_tokens=False) for text in (context, after))
        left = max(self.room - len(head) - len(tail), 0)
        return [*head, *middle[:left], *tail][-self.room :]
