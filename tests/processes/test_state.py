"""Checkpoints that several processes write, and runs that go on from them."""


def test_two_processes_resume_to_the_same_bits(shared):
    for each in shared(2):
        whole, again = each["resumed"]["whole"], each["resumed"]["again"]
        assert again["weights"] == whole["weights"]
        assert again["losses"] == whole["losses"][4:]


def test_a_checkpoint_of_several_processes_has_the_same_files(shared):
    assert shared(2)[0]["resumed"]["files"] == shared(1)[0]["resumed"]["files"]
