"""What does not count against the prompt cap: by exact value or exact place, never by key name at any depth.

Everything that is not in one of these tables counts.
"""

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})

# Values of `type` in messages, input items, content parts and tool calls.
PART_TYPES = frozenset(
    {
        "text",
        "input_text",
        "output_text",
        "summary_text",
        "reasoning_text",
        "refusal",
        "thinking",
        "redacted_thinking",
        "reasoning",
        "message",
        "function",
        "custom",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "local_shell_call",
        "local_shell_call_output",
        "tool_use",
        "tool_result",
        "tool_reference",
        "image_url",
        "input_image",
        "image",
        "audio_url",
        "input_audio",
        "video_url",
    }
)

# Top-level words that pick a model, a mode or an account. Up to 256 characters each are free.
ROUTING = frozenset(
    {
        "model",
        "user",
        "service_tier",
        "reasoning_effort",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "cache_salt",
        "verbosity",
        "truncation",
        "truncation_side",
        "tool_choice",
        "encoding_format",
        "embed_dtype",
        "endianness",
    }
)
MAX_ROUTING_CHARS = 256

# Top-level fields that never reach a prompt. Together at most 16,000 characters of compact JSON.
SAMPLING = frozenset(
    {
        "stop",
        "stop_sequences",
        "stop_token_ids",
        "allowed_token_ids",
        "bad_words",
        "logit_bias",
        "metadata",
        "include",
        "modalities",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "typical_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "repeat_penalty",
        "length_penalty",
        "seed",
        "n",
        "best_of",
        "n_cmpl",
        "stream",
        "stream_options",
        "stream_interval",
        "logprobs",
        "top_logprobs",
        "n_probs",
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "max_new_tokens",
        "n_predict",
        "min_tokens",
        "max_tool_calls",
        "thinking",
        "thinking_token_budget",
        "parallel_tool_calls",
        "store",
        "echo",
        "ignore_eos",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "include_stop_str_in_output",
        "include_reasoning",
        "add_generation_prompt",
        "add_special_tokens",
        "continue_final_message",
        "dimensions",
        "truncate_prompt_tokens",
        "top_n",
        "use_beam_search",
        "priority",
    }
)
MAX_SAMPLING_CHARS = 16_000

# Top-level tool definitions and output schemas, which have a cap of their own. The formats in a
# response's `text` and a message's `output_config` belong to them too.
SCHEMAS = frozenset({"tools", "functions", "response_format", "structured_outputs"})
MAX_SCHEMA_DEPTH = 64

# Members of messages and items whose value is text, counted as its code points.
MESSAGE_TEXT = frozenset(
    {
        "name",
        "refusal",
        "thinking",
        "tool_call_id",
        "tool_use_id",
        "call_id",
        "id",
        "text",
        "data",
        "signature",
        "encrypted_content",
        "status",
    }
)
