#pragma once
// Reads the header of one part of a GGUF file. Used by gguf_file.cc alone.
#include <absl/container/flat_hash_map.h>

#include <string>
#include <string_view>

#include "worker/model/gguf_file.h"

namespace holdfast::model {

// One part: its descriptor (or bytes in memory) and the copy of its metadata.
struct GgufFile::Part {
  std::string path;
  UniqueFd fd;                     // file mode
  std::string bytes;               // memory mode
  uint64_t size = 0;
  int64_t mtime_ns = 0;
  std::byte* meta = nullptr;       // metadata; grows up to meta_capacity without moving
  uint64_t meta_loaded = 0;
  uint64_t meta_capacity = 0;
  bool meta_mapped = false;
  uint64_t meta_size = 0;          // header, metadata and tensor table, once parsed
  uint64_t data_start = 0;

  Part() = default;
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  ~Part();
  // Makes metadata bytes [0, end) readable; end <= size.
  absl::Status Load(uint64_t end);
  // Copies file bytes; kDataLoss when they are not there any more.
  absl::Status ReadAt(uint64_t offset, uint64_t bytes, std::byte* dst) const;
};

class GgufParser {
 public:
  GgufParser(GgufFile* file, GgufFile::Part* part, uint32_t index) : file_(file), part_(part), index_(index) {}
  // Fills file->tensors_ and, for part 0, file->values_.
  absl::Status Run();
  // Values of this part (of part 0: moved into the file).
  const absl::flat_hash_map<std::string, GgufValue>& values() const { return values_; }
  uint64_t tensor_count() const { return tensor_count_; }

 private:
  absl::Status Bad(std::string_view what) const;
  uint64_t left() const { return part_->size - pos_; }
  absl::Status Take(uint64_t n, const std::string& what, const std::byte** out);
  template <class T>
  absl::Status Number(const std::string& what, T* out);
  absl::Status String(uint64_t cap, const std::string& what, std::string_view* out);
  absl::Status Header();
  absl::Status Pair();
  absl::Status Value(const std::string& what, GgufValue* value);
  absl::Status Array(const std::string& what, GgufValue* value);
  absl::Status TensorInfo();
  absl::Status Alignment();
  absl::Status Layout(size_t first_tensor);

  GgufFile* file_;
  GgufFile::Part* part_;
  uint32_t index_;
  uint64_t pos_ = 0;
  uint64_t tensor_count_ = 0;
  uint64_t kv_count_ = 0;
  uint64_t array_elements_ = 0;
  uint64_t alignment_ = 32;
  absl::flat_hash_map<std::string, GgufValue> values_;
  std::vector<std::string> key_order_;
};

}  // namespace holdfast::model
