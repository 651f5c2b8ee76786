from oneloop.converters.framework_layout import Place


def layout(model):
    return {name: Place(name) for name in model.parameters()}
