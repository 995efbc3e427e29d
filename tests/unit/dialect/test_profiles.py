"""The profiles of models: the block's form and its room."""

from __future__ import annotations

import pytest

from memory_extproc.dialect.base import ChatRequest, Form
from memory_extproc.dialect.registry import UNKNOWN, InjectAs, ModelFamily, choose_form, profile_for, room
from memory_extproc.settings import Settings


def a_request(*, has_system: bool = False, prompt_tokens: int = 0, max_tokens: int | None = None) -> ChatRequest:
    return ChatRequest(
        body=b"{}",
        model="m",
        history=(),
        asked="",
        has_system=has_system,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
    )


TAKES_LATE_SYSTEM = [
    "gpt-4o",
    "openai/gpt-4o",
    "GPT-4o-mini",
    "chatgpt-4o-latest",
    "gpt-4",
    "gpt-4-turbo-2024-04-09",
    "gpt-4.1-nano",
    "gpt-4.5-preview",
    "gpt-5",
    "gpt-5-mini",
    "gpt-5.1",
    "gpt-5-chat-latest",
    "o1",
    "o3-mini",
    "o4-mini-2025-04-16",
    "gpt-3.5-turbo",
    "gpt-35-turbo",
    "ft:gpt-4o-mini-2024-07-18:org::id",
    "gpt-4-32k",
    "gpt-4-0613",
    "Qwen/Qwen2.5-7B-Instruct",
    "qwen2.5:7b",
    "accounts/fireworks/models/qwen2p5-72b-instruct",
    "Qwen/Qwen2.5-VL-7B-Instruct",
    "Qwen/Qwen3-8B",
    "qwen3",
    "qwen3:8b",
    "Qwen/Qwen3-30B-A3B-Instruct-2507",
    "qwen.qwen3-32b-v1:0",
]
TAKES_IT_BESIDE_A_SYSTEM_PROMPT = [
    "meta-llama/Llama-3.1-8B-Instruct",
    "meta-llama/Meta-Llama-3-8B-Instruct",
    "llama3",
    "llama3.1:8b",
    "llama-3.3-70b-versatile",
    "accounts/fireworks/models/llama-v3p1-8b-instruct",
    "us.meta.llama3-3-70b-instruct-v1:0",
    "Llama-3.2-3B-Instruct",
]
TAKES_NONE = [
    "gpt-oss-120b",
    "openai/gpt-oss-20b",
    "openai.gpt-oss-120b-1:0",
    "o1-mini",
    "o1-preview",
    "gpt4all-13b",
    "Qwen/Qwen3.5-27B",
    "Qwen3.6-35B-A3B",
    "qwen3p5-27b",
    "Qwen3.10-4B",
    "qwen4",
    "Qwen/Qwen2-7B",
    "qwen-max",
    "meta-llama/Llama-4-Scout-17B",
    "llama-2-7b",
    "meta-llama/Llama-3.2-11B-Vision-Instruct",
    "nvidia/Llama-3.1-Nemotron-70B",
    "mistralai/Mistral-7B-Instruct-v0.3",
    "mistral-large-latest",
    "mixtral-8x7b",
    "google/gemma-2-9b-it",
    "gemma3:4b",
    "deepseek-chat",
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
    "claude-3-5-sonnet-20241022",
    "us.anthropic.claude-sonnet-4-20250514-v1:0",
    "anthropic/claude-opus-4",
    "gemini-2.5-pro",
    "my-own-model",
    "my-gpt-4o",
    "o365",
    "/",
]


@pytest.mark.parametrize("model", TAKES_LATE_SYSTEM)
def test_models_known_to_take_a_late_system_message_get_one(model: str) -> None:
    assert choose_form("auto", profile_for(model), a_request()) is Form.SYSTEM_MESSAGE


@pytest.mark.parametrize("model", TAKES_IT_BESIDE_A_SYSTEM_PROMPT)
def test_llama_3_gets_one_only_beside_the_clients_own(model: str) -> None:
    assert choose_form("auto", profile_for(model), a_request(has_system=True)) is Form.SYSTEM_MESSAGE
    assert choose_form("auto", profile_for(model), a_request(has_system=False)) is Form.USER_SUFFIX


@pytest.mark.parametrize("model", [*TAKES_NONE, ""])
def test_all_others_and_every_unknown_model_get_a_suffix(model: str) -> None:
    assert choose_form("auto", profile_for(model), a_request(has_system=True)) is Form.USER_SUFFIX


@pytest.mark.parametrize("model", ["gpt-4o", "claude-opus-4", "unheard-of"])
@pytest.mark.parametrize("inject_as", ["system_message", "user_suffix"])
def test_what_the_operator_wrote_goes_before_the_profile(inject_as: InjectAs, model: str) -> None:
    assert choose_form(inject_as, profile_for(model), a_request()) is Form(inject_as)


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("gpt-4", 8_192),
        ("gpt-4o", 128_000),
        ("o3", 200_000),
        ("Qwen/Qwen3-8B", 32_768),
        ("Qwen/Qwen3-Coder-480B", 262_144),
        ("meta-llama/Meta-Llama-3-8B-Instruct", 8_192),
        ("meta-llama/Llama-3.1-8B-Instruct", 131_072),
        ("claude-sonnet-4", 200_000),
        ("claude-2.1", 100_000),
        ("gemma-3-27b-it", 131_072),
        ("google/gemma-2-27b-it", 8_192),
        ("mistral-large-latest", None),
        ("unheard-of", None),
    ],
)
def test_a_documented_window_is_known_and_no_other_is_guessed(model: str, window: int | None) -> None:
    profile = profile_for(model)
    assert profile.window == window
    assert profile is UNKNOWN or profile.source.startswith("https://")


KNOWN = ModelFamily(Form.USER_SUFFIX, window=1_000)


def test_the_room_is_the_window_without_prompt_answer_and_margin() -> None:
    request = a_request(prompt_tokens=300, max_tokens=400)
    assert room(request, KNOWN, configured_window=None, margin=50, unknown_cap=128) == 250
    assert room(request, KNOWN, configured_window=800, margin=50, unknown_cap=128) == 50
    assert room(request, UNKNOWN, configured_window=2_000, margin=0, unknown_cap=128) == 1_300
    assert room(a_request(prompt_tokens=300), KNOWN, configured_window=None, margin=0, unknown_cap=1) == 700


def test_a_full_window_has_no_room_and_an_unknown_one_a_small_cap() -> None:
    request = a_request(prompt_tokens=5_000)
    assert room(request, KNOWN, configured_window=None, margin=0, unknown_cap=128) == 0
    assert room(request, UNKNOWN, configured_window=None, margin=0, unknown_cap=128) == 128


def test_a_router_that_chooses_the_model_leaves_room_for_a_whole_overview() -> None:
    inject = Settings().inject
    for model in ("auto", "MoM", "my-model"):
        left = room(
            a_request(prompt_tokens=5_000),
            profile_for(model),
            configured_window=None,
            margin=inject.margin,
            unknown_cap=inject.unknown_window_budget,
        )
        assert left >= inject.overview_budget


def test_a_name_of_any_length_is_no_known_model_and_is_not_kept() -> None:
    assert profile_for("gpt-4o" + "-" * 4_000_000) is UNKNOWN
