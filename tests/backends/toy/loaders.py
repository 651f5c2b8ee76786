from itertools import islice


class Loader:
    num_workers = 0

    def __init__(self, dataset, options):
        self.dataset, self.collate = dataset, options.collator
        self.batch_sampler, self.batch_size, self.drop_last = options.batches, options.batch_size, options.drop_last

    def __len__(self):
        return len(self.batch_sampler)

    def __iter__(self):
        if self.batch_sampler is not None:
            for indices in self.batch_sampler:
                yield self.collate([self.dataset[i] for i in indices])
            return
        samples = iter(self.dataset)
        while chunk := list(islice(samples, self.batch_size)):
            if len(chunk) == self.batch_size or not self.drop_last:
                yield self.collate(chunk)


def make_loader(dataset, loader_options):
    return Loader(dataset, loader_options)


def close(loader):
    pass


def begin_epoch(loader, seed, epoch):
    pass


def iterate(loader):
    return iter(loader)


def has_drawn_seed(loader):
    return None


def seed_without_drawing(loader):
    pass


def is_own(loader):
    return isinstance(loader, Loader)


def is_loader(value):
    return isinstance(value, Loader)


def is_iterable(dataset):
    return not hasattr(dataset, "__getitem__")


def reseed_generator(dataset, seed):
    pass


def generator_states(loader):
    return []


def set_generator_states(loader, states):
    pass
