"""The tiny world: one small encoder per architecture, and a corpus of a few sentences."""

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import Tensor
    from transformers import PreTrainedModel

    from m2dr.data.dataset import Dataset
    from m2dr.model.embed import TextEncoder
    from m2dr.model.encoder import DualEncoder

TEXT = "the a file line list path read write open close number text string class module"
WORDS = TEXT.split()


def configurations() -> dict[str, object]:
    """Four blocks of each architecture, 32 wide."""
    import transformers as hf

    shape = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "pad_token_id": 0,
    }
    decoder = {**shape, "num_key_value_heads": 2, "bos_token_id": 2, "eos_token_id": 3}
    gemma = {**decoder, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8}
    long = {**shape, "max_position_embeddings": 66}
    t5 = {
        "vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 4, "num_heads": 4,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16,
    }  # fmt: skip
    return {
        "bert": hf.BertConfig(**shape),
        "roberta": hf.RobertaConfig(**long),
        "xlm-roberta": hf.XLMRobertaConfig(**long),
        "distilbert": hf.DistilBertConfig(
            vocab_size=64, dim=32, n_layers=4, n_heads=4, hidden_dim=48
        ),
        "mpnet": hf.MPNetConfig(**{**long, "pad_token_id": 1}),
        "deberta-v2": hf.DebertaV2Config(
            **long, relative_attention=True, position_buckets=8, norm_rel_ebd="layer_norm",
            share_att_key=True, pos_att_type="p2c|c2p", position_biased_input=False,
        ),
        "nomic_bert": hf.NomicBertConfig(**long),
        "gte": hf.GteConfig(**long),
        "modernbert": hf.ModernBertConfig(
            **shape, local_attention=4, cls_token_id=2, sep_token_id=3, bos_token_id=2,
            eos_token_id=3, global_attn_every_n_layers=2,
        ),
        "t5": hf.T5Config(**t5),
        "mt5": hf.MT5Config(**t5),
        "umt5": hf.UMT5Config(**t5),
        "llama": hf.LlamaConfig(**decoder),
        "qwen2": hf.Qwen2Config(**decoder),
        "qwen3": hf.Qwen3Config(**decoder, head_dim=8),
        "mistral": hf.MistralConfig(**decoder, sliding_window=8),
        "gemma2": hf.Gemma2Config(**gemma),
        "gemma3_text": hf.Gemma3TextConfig(**gemma, sliding_window_pattern=2),
    }  # fmt: skip


def make_backbone(
    folder: Path, model_type: str = "bert", seed: int = 13, masks: bool = False, **changes: object
) -> Path:
    """A backbone's folder as the hub would give it: random weights, a real tokenizer.

    With `masks` the tokenizer has a token that hides others, as masked language modelling needs it;
    `changes` are fields of the configuration.
    """
    import torch

    from m2dr.model.backbones import BACKBONES

    torch.manual_seed(seed)
    config = configurations()[model_type]
    config = type(config).from_dict({**config.to_dict(), **changes})
    made = BACKBONES[model_type].model_class
    getattr(made, "from_config", made)(config).save_pretrained(folder)
    return unigrams(folder) if model_type.endswith("t5") else word_pieces(folder, masks)


@contextmanager
def stopped_after(shards: int) -> "Iterator[None]":
    """Have an encoding of documents interrupted when so many shards of any layer are written."""
    import pytest

    from m2dr.index.store import StoreWriter

    write, left = StoreWriter.write, [shards]

    def stopped(self: StoreWriter, number: int, *rest: object) -> int:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return write(self, number, *rest)  # type: ignore[arg-type]  # handed on as they came

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoreWriter, "write", stopped)
        yield


def unigrams(folder: Path) -> Path:
    """A tokenizer as T5 has it: pieces of words, and one special token, behind a text."""
    from transformers import T5Tokenizer

    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    pieces = ["<pad>", "</s>", "<unk>", "▁", *(f"▁{word}" for word in WORDS), *letters]
    vocabulary = [(piece, -float(len(pieces) - len(piece))) for piece in dict.fromkeys(pieces)]
    T5Tokenizer(vocab=vocabulary, extra_ids=0, model_max_length=64).save_pretrained(folder)
    return folder


def word_pieces(folder: Path, masks: bool) -> Path:
    """A tokenizer as BERT has it: pieces of words between [CLS] and [SEP]."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(["[MASK]"] if masks else [])]
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    vocabulary = special + WORDS + letters + [f"##{c}" for c in letters]
    words = {word: i for i, word in enumerate(dict.fromkeys(vocabulary)) if i < 64}
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", model_max_length=64, **({"mask_token": "[MASK]"} if masks else {}),
    ).save_pretrained(folder)  # fmt: skip
    return folder


def load_plain(folder: Path, **options: object) -> "PreTrainedModel":
    """The encoder of a backbone's folder as transformers alone opens it."""
    import transformers as hf

    kind = hf.AutoConfig.from_pretrained(folder).model_type
    encoders = {"t5": hf.T5EncoderModel, "mt5": hf.MT5EncoderModel, "umt5": hf.UMT5EncoderModel}
    return encoders.get(kind, hf.AutoModel).from_pretrained(folder, **options)


def make_model(backbone: Path, folder: Path, **card: object) -> Path:
    """A model whose vectors differ so much that rounding decides no rank; fields of its card."""
    from dataclasses import replace

    import torch

    from m2dr.model import checkpoint

    encoder, tokenizer = checkpoint.load(backbone)
    with torch.no_grad():
        for weights in encoder.transformer.parameters():
            weights.mul_(8 if weights.dim() > 1 else 1)
    encoder.card = replace(encoder.card, **{"pooling": "mean", **card})
    checkpoint.save(encoder, tokenizer, encoder.card, folder)
    return folder


def load_auto(model: Path, layer: int | None = None) -> "TextEncoder[DualEncoder]":
    """Load a model as `--device cpu --dtype auto` does: what a command's vectors are compared with."""
    import torch

    from m2dr.model.checkpoint import load
    from m2dr.model.devices import choose_dtype

    return load(model, layer, dtype=choose_dtype("auto", torch.device("cpu")))


def make_shape(folder: Path, layers: int, width: int) -> Path:
    """A backbone's folder of any size: its configuration, and a file where weights would be."""
    import torch
    import transformers as hf
    from safetensors.torch import save_file

    shape = {"num_hidden_layers": layers, "hidden_size": width, "intermediate_size": 48}
    long = {"max_position_embeddings": 1024}
    hf.BertConfig(vocab_size=64, num_attention_heads=4, **long, **shape).save_pretrained(folder)
    save_file({"nothing": torch.zeros(1)}, folder / "model.safetensors")
    return folder


def write_beir(
    folder: Path,
    documents: "Iterable[Mapping[str, object]]",
    queries: "Mapping[str, str]",
    **judged: "Iterable[tuple[str, str, int]]",
) -> Path:
    """A folder in the layout of BEIR; judgements of each split as (query, document, relevance)."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    asked = [{"_id": name, "text": text} for name, text in queries.items()]
    for file, rows in (("corpus", documents), ("queries", asked)):
        (folder / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, found in judged.items():
        lines = "".join(f"{query}\t{docid}\t{level}\n" for query, docid, level in found)
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)
    return folder


def made_up(
    judged: "Iterable[tuple[str, str]]",
    documents: int = 10,
    given: "Mapping[str, tuple[str, ...]] | None" = None,
    name: str = "made-up",
) -> "Dataset":
    """Documents d0, d1, … in memory, and a split `train` in which every judged pair answers."""
    from functools import partial

    from m2dr.core.records import Document, Judgement, Query
    from m2dr.data.dataset import Dataset, MemoryCorpus, Split

    judgements = [Judgement(query, docid, 1) for query, docid in judged]
    asked = dict.fromkeys(judgement.query_id for judgement in judgements)
    queries = [Query(query, f"text of {query}") for query in asked]
    corpus = MemoryCorpus(Document(f"d{n}", f"text {n}") for n in range(documents))
    read = partial(lambda both: both, (queries, judgements))
    return Dataset(name, corpus, {"train": Split(read, lambda: given or {})})


def make_corpus(folder: Path, documents: int = 40, length: int = 8) -> Path:
    """A BEIR folder whose queries share their words with one document each."""
    import random

    generator = random.Random(13)
    texts = [" ".join(generator.choices(WORDS, k=length)) for _ in range(documents)]
    corpus = [{"_id": f"d{i}", "title": f"{t.split()[0]}", "text": t} for i, t in enumerate(texts)]
    queries = {f"q{i}": " ".join(text.split()[:3]) for i, text in enumerate(texts)}
    thirds = {"train": range(0, 24), "dev": range(24, 32), "test": range(32, documents)}
    judged = {split: [(f"q{i}", f"d{i}", 1) for i in some] for split, some in thirds.items()}
    return write_beir(folder, corpus, queries, **judged)


def make_fitted(backbone: Path, folder: Path, **settings: object) -> Path:
    """A model whose exits, from layer 0 on, are fitted on a few sentences; settings of the fit."""
    from dataclasses import replace

    from m2dr.core.settings import FitSettings
    from m2dr.tasks.training.fit import fit

    folder.parent.mkdir(parents=True, exist_ok=True)
    texts = folder.with_suffix(".txt")
    texts.write_text(
        "".join(f"{' '.join(WORDS[i % 9 : i % 9 + 5])} {WORDS[i % 14]}\n" for i in range(99))
    )
    fit(replace(FitSettings(str(backbone), str(texts), rotation="pca"), **settings), folder)
    return folder


def made(folder: Path) -> "tuple[dict[str, str], dict[str, Tensor]]":
    """What a folder of indexes holds: digests of its files, and the tensors of exits and words."""
    from safetensors.torch import load_file

    from m2dr.core.files import sha256_of

    files = [path for path in folder.rglob("*") if path.is_file()]
    exits = [path for path in files if "exits" in path.parts]
    tensors = {
        f"{path.name} {name}": tensor
        for path in exits if path.suffix == ".safetensors" for name, tensor in load_file(path).items()
    }  # fmt: skip
    return {str(p.relative_to(folder)): sha256_of(p) for p in {*files} - {*exits}}, tensors


def assert_alike(folder: Path, expected: "tuple[dict[str, str], dict[str, Tensor]]") -> None:
    """Two folders of indexes are alike byte for byte, their exits to 1e-6 of the largest number."""
    import torch

    (digests, exits), (others, tensors) = made(folder), expected
    assert digests == others
    assert exits.keys() == tensors.keys() != set()
    for name, tensor in tensors.items():
        largest = float(tensor.float().abs().max())
        last = 1e-3 if tensor.dtype == torch.float16 else 0  # its last digit
        torch.testing.assert_close(exits[name], tensor, rtol=last, atol=1e-6 * largest, msg=name)


def stop_milvus(uri: str) -> None:
    """End the server of a local file."""
    from milvus_lite.server_manager import server_manager_instance

    server_manager_instance.release_server(uri)


def ndcg(corpus: Path, model: Path, folder: Path) -> float:
    """nDCG@10 of the cut L2D8 on the test queries of a corpus, as m2dr measures it."""
    from m2dr.core.requests import IndexRequest, SearchRequest
    from m2dr.data.loaders import open_dataset
    from m2dr.evaluation.measures import Evaluator
    from m2dr.tasks.indexing.index import index_corpus
    from m2dr.tasks.searching.search import open_searcher

    where = {"root": folder / "indexes", "device": "cpu", "dtype": "fp32"}
    index_corpus(IndexRequest(str(corpus), str(model), (8,), (2,), store="f32", **where))
    searcher = open_searcher(
        SearchRequest(str(corpus), str(model), layer=2, document_layer=2, dim=8, **where)
    )
    dataset = open_dataset(str(corpus))
    run = searcher.run(dataset.queries("test"), k=10)
    return Evaluator(dataset.judgements("test"), ["nDCG@10"]).scores(run).mean["nDCG@10"]
