def reset_peak(device):
    pass


def allocated(device):
    return None


peak = allocated
