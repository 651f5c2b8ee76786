def watch(model, step):
    return lambda: None
