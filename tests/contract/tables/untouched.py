"""Bodies that must not be touched, for the recording upstream and for real engines."""

import pytest

UNKNOWN = b",".join(
    b'"unknown_%d" :\t{"a":[%d, null ,true],"\\u006b":1E0}' % (n, n) for n in range(30)
)
ODD = (
    b'\r\n{ "model":"m",\n "messages" :[{"role":"user","content":"a\\/b caf\\u00e9 \xc3\xa9 <&> '
    b'\\ud83d\\ude00"},\n\n {"role":"assistant","content":null,"tool_calls":null}],"max_tokens":7,'
    b'"temperature":1.0e+00,"seed":9007199254740993,"top_p":0.10,"presence_penalty":-0.0,"stop":[],'
    b'"logit_bias":{},"user":"","stream":false,'
    + UNKNOWN
    + b',"tools":[{"function":{"z":1,"a":18446744073709551617,"name":"f"},"type":"function"}],'
    b'"tool_choice" : {"type":"function","function":{"name":"f"}} , "extra_body":{"extra_body":{}} }\n'
)

TOOLS = [
    pytest.param(b'"tools":[]', id="no tools"),
    pytest.param(b'"tools":null', id="tools that are null"),
    pytest.param(b'"tools":[],"tool_choice":"auto"', id="a choice of none"),
    pytest.param(b'"tools":[{}],"tool_choice":{"type":"function"}', id="a choice of one"),
    pytest.param(b'"parallel_tool_calls":false,"functions":[]', id="legacy functions"),
]
