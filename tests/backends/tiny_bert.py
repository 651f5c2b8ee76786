"""A BERT of a few weights, made in place."""


def config(dropout=0.0, **changes):
    """Of two layers, for 40 tokens in texts of up to 16, unless changed."""
    import transformers

    sizes = {
        "vocab_size": 40,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 12,
        "max_position_embeddings": 16,
    }
    rates = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
    return transformers.BertConfig(**sizes | rates | changes)


def classifier(dropout=0.0):
    """Of texts, into two classes; always with the same weights."""
    import torch
    import transformers

    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(config(dropout))
