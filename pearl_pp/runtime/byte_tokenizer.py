"""Text in and out of a synthetic model, which knows no language: the command line works without a tokenizer."""

from collections.abc import Sequence


class ByteTokenizer:
    """A prompt's UTF-8 bytes, modulo the vocabulary, are its ids; an answer is shown as its ids in decimal."""

    chat_template = None
    all_special_ids: tuple[int, ...] = ()

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def __len__(self) -> int:
        return self._vocab_size

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [byte % self._vocab_size for byte in text.encode()]}

    def decode(self, token_ids: Sequence[int], **_: bool) -> str:
        return " ".join(map(str, token_ids))

    def get_vocab(self) -> dict[str, int]:
        return {str(token_id): token_id for token_id in range(self._vocab_size)}
