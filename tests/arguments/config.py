class Config:
    """What a model of transformers has to say about itself, as far as an argument changes it."""

    use_cache = "untouched"
