"""Conversations: rendered by the tokenizer's template, and encoded as prompts of ``generate``."""

import datetime
import json
import shutil
from pathlib import Path

import jax
import pytest
import tokenizers

import decoding_jax
from decoding_jax.adapters import from_logits
from decoding_jax.testing import TableLM
from decoding_jax.text import ByteTokenizer, WithSpecialTokens, load_tokenizer

STORIES = Path(__file__).parents[3] / "shared" / "data" / "stories260K"
MARKS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]")
MODEL = TableLM.random(jax.random.key(0), 15)
BYTES = from_logits(lambda tokens, length: jax.numpy.zeros((len(tokens), 259)), 259)
USER = {"role": "user", "content": "the cat sat"}
TURNS = [{"role": "system", "content": "on the mat"}, USER]
LONG = [*TURNS, {"role": "assistant", "content": " sat "}, {"role": "user", "content": "the"}]
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "<où & 'quand'>", "parameters": {"type": "object"}},
}
CHATML = """
{%- for message in messages %}
    {%- if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\nthe mat<|im_end|>\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""
INSTRUCT = """
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}
    {%- set rest = messages[1:] %}
{%- else %}
    {%- set rest = messages %}
{%- endif %}
{%- set state = namespace(count=0) %}
{{- bos_token }}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate') }}
    {%- endif %}
    {%- set state.count = state.count + 1 %}
    {%- if message['role'] == 'user' %}
        {%- if system is defined and loop.first %}
            {{- '[INST] ' + system + '\n\n' + message['content'] + ' [/INST]' }}
        {%- else %}
            {{- '[INST] ' + message['content'] + ' [/INST]' }}
        {%- endif %}
    {%- else %}
        {{- ' ' }}{% generation %}{{ message['content'] | trim }}{{ eos_token }}{% endgeneration %}
    {%- endif %}
{%- endfor %}
"""
BLOCKS = """\
{% if tools %}
# Tools
  {% for tool in tools %}
{{ tool | tojson(indent=2) }}
  {% endfor %}
{% endif %}
{% for document in documents or [] %}
Document {{ loop.index }}: {{ document.title }} -- {{ document['text'] }}
{% endfor %}
    {# a comment #}
{% for message in messages %}
{% if loop.index > 3 %}{% break %}{% endif %}
{{ message.role }}: {{ message.content }}{{ eos_token }}
{% endfor %}
{% if not pad_token is defined %}no padding{% endif %} {{ strftime_now('%Y') }}
"""
TEMPLATES = {"chatml": CHATML, "instruct": INSTRUCT, "blocks": BLOCKS}
EXTRAS = {
    "chatml": [
        {"add_generation_prompt": True},
        {"add_generation_prompt": True, "enable_thinking": False},
    ],
    "instruct": [{"bos_token": "</s>"}],
    "blocks": [{"tools": [TOOL], "documents": [{"title": "one", "text": "the dog"}]}],
}


def write(folder, chat_template=None, **settings):
    """A directory with a small tokenizer that adds ``<s>`` to inputs."""
    words = ["<unk>", *MARKS, "the", "cat", "sat", "on", "mat", "user", "system", "assistant"]
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(MARKS))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    values = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    values |= {"bos_token": {"__type": "AddedToken", "content": "<s>"}, **settings}
    if chat_template is not None:
        values["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    return folder


def test_a_conversation_becomes_a_text_and_tokens(tmp_path):
    tokenizer = load_tokenizer(write(tmp_path, CHATML))
    text = tokenizer.apply_chat_template(TURNS, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\non the mat<|im_end|>\n<|im_start|>user\nthe cat sat<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    ids = tokenizer.apply_chat_template(TURNS, add_generation_prompt=True)
    assert ids == [3, 13, 10, 7, 11, 4, 3, 12, 7, 8, 9, 4, 3, 14]  # No <s>: the text has none.
    year = str(datetime.datetime.now().year)
    rendered = tokenizer.apply_chat_template([USER], chat_template=BLOCKS, tokenize=False)
    assert rendered == f"user: the cat sat</s>\nno padding {year}\n".rstrip("\n")


def test_templates_may_be_named_and_in_files_of_their_own(tmp_path):
    named = [{"name": "default", "template": "plain"}]
    named += [{"name": "tool_use", "template": "{{ tools and 'tools' }}"}]
    write(tmp_path, [*named, {"name": "rag", "template": "{{ documents[0].text }}"}])

    def rendered(**settings):
        return load_tokenizer(tmp_path).apply_chat_template([USER], tokenize=False, **settings)

    assert rendered() == "plain"
    assert rendered(tools=[TOOL]) == "tools"
    assert rendered(chat_template="rag", documents=[{"text": "the"}]) == "the"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "json"}))
    assert rendered() == "json"
    (tmp_path / "chat_template.jinja").write_text("jinja {{ eos_token }}")
    assert rendered() == "jinja </s>"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools[0].type }}")
    assert rendered(tools=[TOOL]) == "function"
    assert rendered() == "jinja </s>"


def test_generate_takes_conversations_as_texts(tmp_path):
    """Beside strings; their special tokens are those of the template alone."""
    tokenizer = load_tokenizer(write(tmp_path, CHATML))
    mixed = decoding_jax.generate(MODEL, tokenizer, [TURNS, "the cat"], max_new_tokens=2)
    prompt = tokenizer.apply_chat_template(TURNS, add_generation_prompt=True)
    given = decoding_jax.Prompt([prompt], [len(prompt)])
    stop = decoding_jax.Stop(eos_ids=())
    want = decoding_jax.greedy(MODEL, given, max_new_tokens=2, stop=stop).tokens[0, 0].tolist()
    assert mixed[0][0].tokens == want
    assert len(mixed) == 2
    wrapped = WithSpecialTokens(tokenizer, prefix=[5])
    assert wrapped.apply_chat_template(TURNS, add_generation_prompt=True) == prompt


def test_a_template_is_kept_in_a_sandbox(tmp_path):
    tokenizer = load_tokenizer(write(tmp_path, CHATML))
    for attack in ("{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}{{ x.y }}"):
        with pytest.raises(ValueError, match=r"^chat_template: "):
            tokenizer.apply_chat_template([USER], chat_template=attack)


class Plain:
    """A tokenizer of a user's own."""

    eos_ids = ()

    def encode(self, text):
        return [ord(c) % 15 for c in text]

    def decode(self, ids):
        return "".join(chr(97 + i) for i in ids)


MISTAKES = [
    (
        lambda t: t.apply_chat_template("hello"),
        'messages: expected a list of messages such as {"role": "user",',
    ),
    (lambda t: t.apply_chat_template(USER), "messages: expected a list of messages such as "),
    (lambda t: t.apply_chat_template(["a"]), "messages: expected a list of messages such as "),
    (
        lambda t: t.apply_chat_template([{"role": "user", "content": object()}]),
        "messages: expected plain data, got Object of type",
    ),
    (
        lambda t: t.apply_chat_template([USER, USER]),
        "chat_template: Conversation roles must alternate",
    ),
    (
        lambda t: t.apply_chat_template([USER], chat_template="{% if %}"),
        "chat_template: not a template in Jinja",
    ),
    (
        lambda t: t.apply_chat_template([{"role": "user", "content": 5}]),
        'chat_template: can only concatenate str (not "int") to str',
    ),
    (
        lambda t: decoding_jax.generate(MODEL, t, [USER]),
        "texts: expected strings, or lists of messages, which is [messages] for one conversation",
    ),
    (
        lambda t: decoding_jax.generate(MODEL, t, [[USER, {"content": "a"}]]),
        "texts[0]: expected a list of messages such as ",
    ),
    (
        lambda t: decoding_jax.generate(MODEL, Plain(), [[USER]]),
        "texts: expected strings with a Plain, which has no template for messages, got",
    ),
    (
        lambda t: decoding_jax.generate(BYTES, ByteTokenizer(), [[USER]]),
        "chat_template: expected a template in Jinja, or a model that was trained on",
    ),
    (
        lambda t: t.apply_chat_template([USER], add_generation_promt=True),
        "add_generation_promt: expected an argument of apply_chat_template or a variable of the "
        "template, bos_token, eos_token, rest, system; did you mean add_generation_prompt?",
    ),
    (
        lambda t: t.apply_chat_template([USER], enable_thinking=False),
        "enable_thinking: expected an argument of apply_chat_template or a variable of the templ",
    ),
    (
        lambda t: t.apply_chat_template([USER], tools=[TOOL]),
        "tools: expected None for a template that does not use them, got [",
    ),
    (
        lambda t: t.apply_chat_template([USER], max_length=8),
        "max_length: expected False or None, got 8; truncate=True of generate cuts",
    ),
    (
        lambda t: t.apply_chat_template([USER], return_tensors="np"),
        "return_tensors: expected False or None, got 'np'; Prompt([ids], [len(ids)]) makes arrays",
    ),
    (
        lambda t: t.apply_chat_template([USER], return_dict=True),
        "return_dict: expected False or None, got True; the result is a list of token ids",
    ),
    (
        lambda t: t.apply_chat_template([USER], padding=True),
        "padding: expected False or None, got True; generate pads conversations itself",
    ),
    (
        lambda t: t.apply_chat_template(
            [USER], continue_final_message=True, add_generation_prompt=True
        ),
        "continue_final_message: expected False beside add_generation_prompt, got True",
    ),
    (
        lambda t: t.apply_chat_template([USER], continue_final_message="thinking"),
        "continue_final_message: expected a last message with a text as its 'thinking', got",
    ),
    (
        lambda t: t.apply_chat_template(
            [USER], continue_final_message=True, chat_template="{{ bos_token }}"
        ),
        "continue_final_message: expected a template that writes the last message as it is, got",
    ),
    (
        lambda t: decoding_jax.generate(MODEL, t, [[{**USER, "content": chr(0xD83D)}]]),
        "texts: expected Unicode text, got '\\ud83d', a lone surrogate, as character 0 at index 0",
    ),
]


@pytest.mark.parametrize(("call", "message"), MISTAKES, ids=[m for _, m in MISTAKES])
def test_a_mistake_gets_one_line(call, message, tmp_path):
    tokenizer = load_tokenizer(write(tmp_path, INSTRUCT))
    with pytest.raises(ValueError) as caught:
        call(tokenizer)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_without_a_template_says_so(tmp_path):
    tokenizer = load_tokenizer(write(tmp_path))
    with pytest.raises(
        ValueError, match=r"^chat_template: expected .*, got None, and the tokenizer has none$"
    ):
        tokenizer.apply_chat_template([USER])


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_conversation_is_rendered_as_transformers_renders_it(name, tmp_path):
    import transformers

    write(tmp_path, TEMPLATES[name])
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path)
    unsaid = [{**TURNS[0], "name": None}, USER]
    for messages in ([USER], TURNS, LONG, unsaid):
        continued = {"continue_final_message": True, "return_dict": False}
        if name == "blocks" and messages is LONG:  # It leaves the last message out.
            continued = {}
        for extra in [{}, continued, *EXTRAS[name]]:
            want = theirs.apply_chat_template(messages, tokenize=False, **extra)
            assert ours.apply_chat_template(messages, tokenize=False, **extra) == want
            ids = theirs.apply_chat_template(messages, **{**extra, "return_dict": False})
            assert ours.apply_chat_template(messages, **extra) == ids


@pytest.mark.skipif(not STORIES.is_dir(), reason="no stories260K beside the project")
def test_special_tokens_in_a_rendered_text_are_tokens_of_a_sentencepiece_model(tmp_path):
    import transformers

    for name in ("config.json", "tokenizer.model"):
        shutil.copy(STORIES / name, tmp_path)
    settings = {"tokenizer_class": "LlamaTokenizer", "chat_template": INSTRUCT}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for messages in ([USER], LONG):
        ids = theirs.apply_chat_template(messages, return_dict=False)
        assert load_tokenizer(tmp_path).apply_chat_template(messages) == ids
