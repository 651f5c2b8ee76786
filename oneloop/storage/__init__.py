"""Runs whose output_dir is a URL of object storage.

A run trains in a local directory, the staging directory, where everything holds that holds on a disk. A `Mirror`
uploads what is complete there. Remote names are those of the local files:

    URL/checkpoint-N/...             files of a checkpoint, with .uploading until they are all there
    URL/checkpoint-N/manifest.json   uploaded last: without it, the checkpoint does not exist
    URL/checkpoint-N/.part-R.json    until then: what process R has uploaded, if machines share no disk
    URL/.checkpoint-N.ID.partial/    a checkpoint that is about to replace another of the same step
    URL/log.jsonl, ...               other files of the output directory
    URL/.oneloop-lock                the lease of the run that uploads there
"""
