"""Fitted exits inside a training: before its first step, and after its last one."""

from dataclasses import replace

from m2dr.model.checkpoint import Tokenizer
from m2dr.model.encoder import Encoder
from m2dr.records.card import ModelCard
from m2dr.settings import TrainSettings
from m2dr.verbs.fitting.solving import fit_texts_now, fitted_cuts
from m2dr.verbs.fitting.texts import FitTexts, fit_texts
from m2dr.verbs.progress import say

TEXTS = 4096  # documents and training queries that a fit inside a training reads, at most


def fit_before(encoder: Encoder, tokenizer: Tokenizer, settings: TrainSettings) -> None:
    """Give an encoder that is about to be trained fitted exits, which are trained with it."""
    say("Fitting exits before the first step")
    fit_texts_now(encoder.eval(), tokenizer, _texts(settings), settings.seed, "learned")


def refit(
    encoder: Encoder, tokenizer: Tokenizer, card: ModelCard, settings: TrainSettings
) -> ModelCard:
    """Give a trained encoder fitted exits, and return its card with them.

    Documents are those of the last layer from now on; the full model stays what it was.
    """
    say("Fitting exits: the full model stays as it is trained, every layer below it retrieves")
    for layer in [layer for layer in encoder.exit_heads if int(layer) < encoder.blocks]:
        del encoder.exit_heads[layer]
    record = fit_texts_now(encoder, tokenizer, _texts(settings), settings.seed, "learned")
    return replace(card, cuts=fitted_cuts(card), documents="last", fit=record)


def refit_table(encoder: Encoder, tokenizer: Tokenizer, settings: TrainSettings) -> None:
    """Fit layer 0 again, which no training reaches; exits that were trained stay as they are."""
    trained, behind = encoder.fitted, encoder.behind
    fit_texts_now(encoder, tokenizer, _texts(settings), settings.seed, "none")
    if trained is None or encoder.fitted is None:
        raise AssertionError("there are exits before and after a fit")
    trained.table = encoder.fitted.table
    encoder.fitted, encoder.behind = trained, behind


def with_fitted_cuts(card: ModelCard, frozen: bool) -> ModelCard:
    """Return the card of a model with fitted exits, with the cuts that no step has trained.

    They are those of layer 0, and all that a frozen encoder had.
    """
    more = {cut for cut in fitted_cuts(card) if frozen or cut.layer == 0}
    return replace(card, cuts=tuple(sorted({*card.cuts, *more})))


def _texts(settings: TrainSettings) -> FitTexts:
    return fit_texts(settings.corpus, TEXTS, settings.seed, settings.split)
