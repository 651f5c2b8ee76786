"""The command lines under which the scripts are run, as people type them."""

from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"

_HF4 = "--do_train --do_eval --do_predict --overwrite_output_dir --evaluation_strategy steps --eval_steps 4 "
_FEW = "--per_device_train_batch_size 8 --num_train_epochs 2 --logging_steps 2 --seed 7 --report_to none --no_cuda "

COMMANDS = {
    "classification": "hf4_classification.py --model_name_or_path bert --train_file train.csv "
    "--validation_file dev.csv --test_file dev.csv --max_seq_length 12 --max_train_samples 40 "
    "--output_dir out/classification --learning_rate 2e-2 --save_steps 4 --save_total_limit 2 "
    "--load_best_model_at_end --metric_for_best_model accuracy --greater_is_better True --warmup_ratio 0.1 "
    "--logging_dir out/logs --pad_to_max_length False " + _HF4 + _FEW,
    "resumed": "hf4_classification.py --model_name_or_path bert --train_file train.csv --validation_file dev.csv "
    "--max_seq_length 12 --max_train_samples 40 --output_dir out/classification --do_train --do_eval --save_steps 4 "
    "--learning_rate 2e-2 --num_train_epochs 3 --per_device_train_batch_size 8 --seed 7 --report_to none --use_cpu "
    "--pad_to_max_length False",
    "json": "hf4_classification.py settings.json",
    "language": "hf5_language_modelling.py --model_type gpt2 --config_overrides "
    "n_embd=16,n_layer=1,n_head=2,n_positions=32,vocab_size=60,bos_token_id=2,eos_token_id=3 --tokenizer_name bert "
    "--train_file train.txt --validation_file dev.txt --block_size 16 --do_train --do_eval --output_dir out/language "
    "--max_train_samples 16 --per_device_train_batch_size 4 --per_device_eval_batch_size 4 --max_steps 6 "
    "--eval_strategy epoch --save_strategy epoch --warmup_steps 0.1 --gradient_accumulation_steps 2 --use_cpu "
    "--learning_rate 5e-3 --log_level error",
    "tokens": "hf4_token_classification.py --model_name_or_path bert --train_file train_ner.json --validation_file "
    "dev_ner.json --test_file dev_ner.json --return_entity_level_metrics --output_dir out/tokens --learning_rate 1e-2 "
    "--save_strategy no " + _HF4 + _FEW,
    "translation": "hf5_translation.py --model_name_or_path t5 --source_lang en --target_lang de --source_prefix the "
    "--train_file train_translation.json --validation_file dev_translation.json --test_file dev_translation.json "
    "--do_train --do_eval --do_predict --predict_with_generate --generation_max_length 8 --num_beams 2 "
    "--max_predict_samples 5 --output_dir out/translation --eval_strategy epoch --save_strategy epoch "
    "--num_train_epochs 2 --per_device_train_batch_size 8 --per_device_eval_batch_size 8 --label_smoothing_factor 0.1 "
    "--learning_rate 1e-2 --use_cpu",
    "answers": "hf4_question_answering.py --model_name_or_path bert --train_file train_qa.json --validation_file "
    "dev_qa.json --output_dir out/answers --learning_rate 1e-2 --save_strategy no " + _HF4 + _FEW,
    "masked": "hf4_masked_language_modelling.py --model_dir bert --train_file train.txt --output_dir out/masked "
    "--mlm_probability 0.3 --per_device_train_batch_size 8 --report_to none --no_cuda --unknown word",
    "paddle": "paddlenlp_classification.py --train_path train.tsv --dev_path dev.tsv --output_dir out/paddle "
    "--do_train --do_eval --do_predict --overwrite_output_dir --evaluation_strategy epoch --save_strategy epoch "
    "--load_best_model_at_end --metric_for_best_model accuracy --num_train_epochs 6 --learning_rate 5e-2 "
    "--per_device_train_batch_size 8 --device cpu --disable_tqdm True --recompute False --report_to visualdl",
    "ernie": "paddlenlp_ernie.py --output_dir out/ernie --do_train --do_eval --max_steps 6 --device cpu "
    "--evaluation_strategy steps --eval_steps 3 --save_steps 3 --fp16_opt_level O1 --disable_tqdm True",
    "mindspore": "mindnlp_engine.py out/mindspore",
    "mindnlp": "mindnlp_today.py out/mindnlp",
    "mindnlp_language": "mindnlp_language_modelling.py out/mindnlp_language",
    "mindnlp_tokens": "mindnlp_token_classification.py out/mindnlp_tokens",
    "mindnlp_translation": "mindnlp_translation.py out/mindnlp_translation",
    "mindnlp_pipelines": "mindnlp_pipelines.py out/mindnlp_pipelines",
}

SETTINGS = {
    "model_name_or_path": "bert",
    "train_file": "train.csv",
    "validation_file": "dev.csv",
    "max_seq_length": 12,
    "output_dir": "out/json",
    "do_train": True,
    "do_eval": True,
    "max_steps": 3,
    "evaluation_strategy": "no",
    "report_to": "none",
    "no_cuda": True,
}


TRANSFORMERS = ("classification", "resumed", "json", "language", "tokens", "translation", "answers", "masked")


def command(name: str) -> list[str]:
    script, *words = COMMANDS[name].split()
    return [str(SCRIPTS / script), *words]
