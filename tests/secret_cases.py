"""What a careful reader would call a secret, and what only looks like one: names, texts and objects."""

import collections
import dataclasses
import enum
import pathlib
import types

CANARY = "c4n4ry-"  # in every secret of these tables, so that one search finds any of them

SECRET_NAMES = (
    # Tokens, in every spelling.
    "hub_token token HF_TOKEN api_token bearer_token github_token refreshToken push_to_hub_token hub_tokens apitoken "
    "hf_tokens access_tokens authToken id_token csrf_token slack_bot_token hub_token_value personal_access_token "
    "acme_token hfapitoken openaiapikey _token token2 use_auth_token "
    # Keys.
    "openai_api_key apikey openaiApiKey WANDB_API_KEY openai_key wandb_key private_key ssh_key AZURE_STORAGE_KEY "
    "aws_access_key_id accesskey secretKey APIKey APIkey x-api-key openai_keys api_keys encryption_key master_key "
    "license_key acme_key anthropicKey fernet_key gcp_service_key signing-key s3_key "
    # Passwords.
    "db_password passwd passphrase pwd smtp_pass dbpass userPassword admin_pw passcode redis_passwords pass "
    "pass_phrase wifi_psk PGPASSWORD "
    # What else lets somebody in.
    "client_secret secret secrets aws_secret_access_key clientsecret gcp_credentials creds db_creds github_pat pat "
    "basic_auth auth proxy_auth auth_header authorization jwt session_cookie cookies slack_webhook_url dsn sentry_dsn "
    "sas_url sas_token blob_sas presigned_url connection_string conn_str otp seed_phrase service_account_json 密码"
).split()

INNOCENT_NAMES = (
    "tokenizer tokenizer_name tokenizer_kwargs tokenizers max_tokens min_tokens max_new_tokens num_tokens tokens "
    "num_input_tokens_seen include_num_input_tokens_seen include_tokens_per_second tokens_per_second total_tokens "
    "pad_token pad_token_id eos_token bos_token unk_token sep_token cls_token mask_token image_token eot_token "
    "decoder_start_token_id forced_bos_token_id additional_special_tokens skip_special_tokens token_type_ids token_ids "
    "tokenize token_dropout max_token_length first_token stop_token prompt_token tool_call_token add_eos_token "
    "completion_tokens prompt_tokens suppress_tokens extra_special_tokens token_level_loss mean_token_accuracy "
    "key keys key_column label_key sort_key primary_key foreign_key dict_key text_key cache_key public_key metric_key "
    "prompt_key image_key group_key partition_key key_size key_padding_mask num_key_value_heads key_value_cache "
    "encoder_key_dim keys_to_ignore_at_inference ignore_keys_for_eval keyword keywords monkey turkey keyframe hotkey "
    "passes num_passes bypass compass compass_direction passed pass_rate pass_at_k passage passages forward_pass "
    "second_pass passthrough encompass author authors authentication auth_type auth_method secretary secretion credit "
    "credits accredited pattern patterns path paths patience spatial compat patch private hub_private_repo "
    "hub_model_id label_names cookiecutter password_length password_file secret_name token_file token_url api_key_env "
    "jwt_algorithm signature session_id client_id user username login_url database name value sasrec dsnet "
    "hotkeys tokenized detokenize untokenized tokenizer_file"
).split()

# A text, and the part of it that must not be seen.
TEXTS = [
    ("postgres://me:{}@db.example/x", "pg"),
    ("postgresql+psycopg2://me:p@{}@db.example:5432/x", "two@signs"),
    ("s3://AKID:ab/{}@bucket/run", "with-slash"),
    ("redis://:{}@cache:6379/0", "no-user"),
    ("simplecache::s3://k:{}@bucket/x", "chained"),
    ("https://{}@github.com/me/repo.git", "0123456789abcdefghij"),
    ("https://example.org/data?token={}&page=2", "query"),
    ("https://example.org/data?page=2&access_token={}", "access"),
    ("https://x.blob.core.windows.net/c/f?sv=2024-11-04&sr=b&sig={}%3D", "sas"),
    ("https://b.s3.amazonaws.com/f?X-Amz-Credential=me&X-Amz-Signature={}&x=1", "amz"),
    ("https://maps.example.com/api?key={}&q=paris", "9f86d081"),
    ("https://hooks.slack.com/services/T000/B000/{}", "hook"),
    ("https://discord.com/api/webhooks/123/{}", "discord"),
    ("DefaultEndpointsProtocol=https;AccountName=me;AccountKey={}==;EndpointSuffix=core.windows.net", "account/+"),
    ("Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey={}", "shared"),
    ("Server=db;User Id=sa;Password={};", "ado"),
    ("python train.py --openai_key={} --lr 3", "flag="),
    ("python train.py --hub_token {} --lr 3", "flag"),
    ("['train.py', '--smtp-pass', '{}', '--lr', '3']", "argv"),
    ("OPENAI_API_KEY={} python train.py", "environment"),
    ("Authorization: Bearer {}", "bearer1"),
    ("curl -H 'X-Api-Key: {}' https://example.org", "header"),
    ("headers {{'Authorization': 'Basic {}'}}", "basic2"),
    ("password: {}", "yaml"),
    ('{{"api_key": "{}", "n": 3}}', "json"),
    ('"{{\\"private_key\\": \\"{}\\"}}"', "json in json"),
    ("Config(user='me', password='{}')", "repr"),
    ("Config(user='me', password=b'{}')", "bytes"),
    ("Client(auth=('me', '{}'))", "pair"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMII{}\n-----END RSA PRIVATE KEY-----", "pem"),
]

# Tokens in the format of a service, in a sentence.
TOKENS = [
    f"hf_{'aB1' * 11}",
    f"sk-proj-{'b2' * 12}",
    f"sk-ant-api03-{'Cc3' * 8}",
    f"sk_live_{'d4' * 12}",
    f"ghp_{'e5' * 18}",
    f"github_pat_{'f6' * 20}",
    f"glpat-{'g7' * 10}",
    "AKIAIOSFODNN7EXAMPLE",
    f"AIza{'h8' * 17}i",
    f"xoxb-{'1234-' * 4}abc",
    f"npm_{'j9' * 18}",
    f"dop_v1_{'ab' * 32}",
    f"gsk_{'k1' * 16}",
    f"eyJ{'hbGciOi'}JIUzI1NiJ9.eyJzdWIiOiIx{'l2' * 5}.SflKxw{'m3' * 8}",
    f"dapi{'0f' * 16}",
    f"nvapi-{'n4' * 16}",
]

INNOCENT_TEXTS = [
    "see https://example.org:8080/a@b",
    "git clone ssh://git@github.com/me/repo.git",
    "hf_hub_download failed",
    "sk-learn and risk-averse-investors-in-the-market",
    "pass --hub_token to push, or log in",
    "--hub_token and --push_to_hub_token are aliases",
    "the token: see below",
    "Basic authentication with a bearer token",
    "hub_token=None, token=True, max_tokens=100, pad_token='<pad>'",
    "sorted by key=length, sort_key='text', label_key=labels",
    "gs://bucket/tokenizer/token_counts.json?generation=12",
    "https://example.org/search?q=password&page=2",
    "eval_token_accuracy: 0.5, pass@1: 0.3",
    "abfss://container@account.dfs.core.windows.net/run",
    "tokens=[1, 2, 3] keys=['a', 'b']",
    "s3://bucket/key=value/part-0.parquet",
    "learning_rate=2e-05 --max_tokens 512 --tokenizer gpt2",
    "password: expected a text of 8 characters, but got 3. Pass a longer one.",
]


def canary(name, depth=0):
    return f"{CANARY}{name}-{depth}".lower().replace(" ", "-")


@dataclasses.dataclass
class Mail:
    host: str = "mail.example"
    password: str = canary("field")


@dataclasses.dataclass
class Hidden:
    """Its text says nothing, but a service may store its fields."""

    api_key: str = dataclasses.field(default=canary("hidden field"), repr=False)


@dataclasses.dataclass
class Outer:
    mail: Mail = dataclasses.field(default_factory=Mail)
    size: int = 3


class Slots:
    __slots__ = ("login",)

    def __init__(self):
        self.login = {"smtp_pass": canary("slot")}

    def __repr__(self):
        return f"Slots({self.login})"


class Client:
    """Shows its key without a name."""

    def __init__(self):
        self._api_key = canary("attribute")

    def __repr__(self):
        return f"Client({self._api_key})"


class Failing(Client):
    def __repr__(self):
        raise RuntimeError(self._api_key)


class Word(str, enum.Enum):
    URL = f"https://me:{canary('enum')}@example.org"


Pair = collections.namedtuple("Pair", "user password")


def objects():
    """Values of fields without a telling name, that have a secret."""
    return {
        "dataclass": Mail(),
        "nested": Outer(),
        "hidden": Hidden(),
        "listed": [Mail(password=canary("in list")), {"inner": Mail(password=canary("in dict"))}],
        "namespace": types.SimpleNamespace(user="me", token=canary("namespace")),
        "named": Pair("me", canary("named tuple")),
        "slots": Slots(),
        "client": Client(),
        "failing": Failing(),
        "enum": Word.URL,
        "path": pathlib.PurePosixPath(f"/mnt/token={canary('path')}"),
        "raw": f"hub_token={canary('raw bytes')}".encode(),
        "words": {f"--api_key={canary('in set')}"},
        "argv": ["train.py", "--hub_token", canary("in argv"), "--lr", "3"],
        "pairs": [{"name": "API_KEY", "value": canary("name and value")}, {"name": "HOME", "value": "here"}],
        "keys": {f"https://me:{canary('as key')}@example.org": 1},
        "credentials": {"user": canary("below"), "parts": [canary("deep below"), 2], "key": {"id": canary("deeper")}},
        "headers": {"Authorization": f"Bearer {canary('header')}", "Accept": "text/plain"},
        "PASSWORD_AS_NUMBER": {"password": 4040404},
    }


def texts(depth=0):
    return [text.format(canary(secret, depth)) for text, secret in TEXTS] + [f"refused {token}." for token in TOKENS]


# Whatever must not be in any file or output, in lower case.
HIDDEN = [CANARY, "4040404", *(token.lower() for token in TOKENS)]


def seen(data):
    """The secrets in bytes or text."""
    text = data.decode("latin-1") if isinstance(data, bytes) else data
    lowered = text.lower()
    return [secret for secret in HIDDEN if secret in lowered]
