// libFuzzer's entry to tool_parser_body.h; corpus/tool_parser has a seed for each format.
#include "tests/fuzz/tool_parser_body.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const holdfast::tools::testing::ToolParserBody body;
  body.Run(data, size);
  return 0;
}
