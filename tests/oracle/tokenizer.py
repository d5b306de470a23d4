"""Writes tests/fixtures/tokenizer.json: what the Python package `tokenizers` makes of hostile texts.

Run from the repository's root with `pip install tokenizers`; prints the package's version.
"""

import json

import tokenizers
from tokenizers import BertWordPieceTokenizer

TEXTS = [
    "",
    " ",
    "red heart",
    "Red HEART!",
    "Café au lait, naïve façade, Ångström, İstanbul, ẞ straße",
    "e\u0301 a\u0300\u0323 o\u0308",
    "日本語のテキスト 漢字漢字 한국어 ภาษาไทย",
    "emoji 😀 👩‍🚀 🏳️‍🌈 ❤️ between words",
    "control\x00characters\x01\x1f\x7f\u0080 and\ttabs\r\nnewlines\u2028separator\u2029",
    "zero\u200bwidth \u200djoiner\ufeff bom \u00a0nbsp\u3000ideographic",
    "العربية עברית \u202eright-to-left\u202c",
    "a" * 100,
    "a" * 101,
    "x" * 10_000,
    "ab " * 500,
    "!!!???...---___###$$$%%%^^^&&&***((()))",
    "don't can't it's rock'n'roll",
    "http://example.com/a?b=c&d=e#f user@example.com",
    "3.14159 1,000,000 1e-5 ½ ² ₃ Ⅷ",
    "[CLS] [SEP] [PAD] [MASK] [UNK] [unused1] ##ing",
    "unaffable embeddings tokenization hyperparameterization",
    "\ufffd \U0010ffff \ue000 private use",
    "ﬁ ﬂ ligatures ｆｕｌｌｗｉｄｔｈ",
    "ǅ ǆ titlecase ß ſ",
    "1st place medal",
    "flag: Côte d’Ivoire",
    "“quotes” ‘single’ «guillemets» — dash – en",
    "\t\n\r",
    "a\u0300" * 200,
    "\U00020000\U0002a6d6 extension b",
    "café",
    "cafe\u0301",
]


def main():
    bert = BertWordPieceTokenizer("assets/vocab/bert-base-uncased-vocab.txt", lowercase=True)
    rows = [{"text": text, "ids": bert.encode(text).ids} for text in TEXTS]
    with open("tests/fixtures/tokenizer.json", "w", encoding="utf-8") as file:
        json.dump(rows, file, ensure_ascii=True, separators=(",", ":"))
        file.write("\n")
    print("tokenizers", tokenizers.__version__, len(rows), "texts")


if __name__ == "__main__":
    main()
