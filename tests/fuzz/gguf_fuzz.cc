// Any bytes as a GGUF file. A good seed corpus: files of holdfast-make-model.
#include <cstddef>
#include <cstdint>
#include <string>

#include "proto/base/log.h"
#include "tests/fuzz/gguf_body.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto ops = [] {
    holdfast::SetLogLevel(holdfast::LogLevel::kOff);
    return holdfast::kernels::MakeReferenceOps();
  }();
  holdfast::test::RunGgufBytes({reinterpret_cast<const char*>(data), size}, size < 65536, ops.get());
  return 0;
}
