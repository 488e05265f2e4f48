#include "worker/model/gguf_parser.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "proto/base/status_wire.h"

namespace holdfast::model {
namespace {

constexpr uint64_t kMaxMetadata = uint64_t{1} << 30;
constexpr uint64_t kMaxKeys = 65536;
constexpr uint64_t kMaxTensors = 65536;
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxNameBytes = 63;
constexpr uint64_t kMaxStringBytes = uint64_t{64} << 20;
constexpr uint64_t kMaxArrayElements = uint64_t{1} << 26;
constexpr uint64_t kMaxDim = uint64_t{1} << 40;
// The least a pair (length, one byte of key, type, one byte of value) and a tensor info can take: they bound the counts of the header.
constexpr uint64_t kMinPairBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;
constexpr uint64_t kLoadStep = uint64_t{1} << 20;

uint64_t ElementBytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool: return 1;
    case GgufType::kU16:
    case GgufType::kI16: return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32: return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64: return 8;
    case GgufType::kString:
    case GgufType::kArray: return 0;
  }
  return 0;
}

}  // namespace

GgufFile::Part::~Part() {
  if (meta_mapped) munmap(meta, meta_capacity);
}

absl::Status GgufFile::Part::Load(uint64_t end) {
  if (end <= meta_loaded) return absl::OkStatus();
  if (meta == nullptr) {
    // Address space for the most we would ever read; pages are taken as they are filled, and nothing ever moves.
    meta_capacity = std::min(size, kMaxMetadata);
    void* p = mmap(nullptr, meta_capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
      return absl::ResourceExhaustedError(fmt::format("{}: no address space for {} bytes of metadata: {}", path, meta_capacity, strerror(errno)));
    }
    meta = static_cast<std::byte*>(p);
    meta_mapped = true;
  }
  const uint64_t want = std::min(meta_capacity, std::max(end, meta_loaded + kLoadStep));
  HF_RETURN_IF_ERROR(ReadAt(meta_loaded, want - meta_loaded, meta + meta_loaded));
  meta_loaded = want;
  return absl::OkStatus();
}

absl::Status GgufFile::Part::ReadAt(uint64_t offset, uint64_t count, std::byte* dst) const {
  if (!fd) {
    memcpy(dst, bytes.data() + offset, count);
    return absl::OkStatus();
  }
  while (count > 0) {
    const ssize_t n = pread(fd.get(), dst, std::min<uint64_t>(count, uint64_t{1} << 30), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::DataLossError(fmt::format("{}: cannot read at offset {}: {}", path, offset, strerror(errno)));
    if (n == 0) {
      return absl::DataLossError(fmt::format("{}: ends at offset {}; it had {} bytes when it was opened and was truncated since", path,
                                             offset, size));
    }
    dst += n;
    offset += n;
    count -= n;
  }
  return absl::OkStatus();
}

absl::Status GgufParser::Bad(std::string_view what) const {
  return absl::InvalidArgumentError(fmt::format("{}: {}", part_->path, what));
}

absl::Status GgufParser::Take(uint64_t n, const std::string& what, const std::byte** out) {
  if (n > left()) {
    return Bad(fmt::format("{} needs {} bytes at offset {}, but the file has only {} bytes (truncated, or a length is wrong)", what, n, pos_,
                           part_->size));
  }
  if (n > kMaxMetadata - pos_) return Bad(fmt::format("{} lies beyond {} bytes of metadata, the most that is accepted", what, kMaxMetadata));
  HF_RETURN_IF_ERROR(part_->Load(pos_ + n));
  *out = part_->meta + pos_;
  pos_ += n;
  return absl::OkStatus();
}

template <class T>
absl::Status GgufParser::Number(const std::string& what, T* out) {
  const std::byte* p = nullptr;
  HF_RETURN_IF_ERROR(Take(sizeof(T), what, &p));
  memcpy(out, p, sizeof(T));
  return absl::OkStatus();
}

absl::Status GgufParser::String(uint64_t cap, const std::string& what, std::string_view* out) {
  uint64_t length = 0;
  HF_RETURN_IF_ERROR(Number(what, &length));
  if (length > cap) return Bad(fmt::format("{} claims a length of {} bytes; at most {} are accepted", what, length, cap));
  const std::byte* p = nullptr;
  HF_RETURN_IF_ERROR(Take(length, what, &p));
  *out = {reinterpret_cast<const char*>(p), length};
  return absl::OkStatus();
}

absl::Status GgufParser::Header() {
  const std::byte* magic = nullptr;
  HF_RETURN_IF_ERROR(Take(4, "the magic number", &magic));
  if (memcmp(magic, "GGUF", 4) != 0) {
    return Bad(fmt::format("not a GGUF file: it begins with {}, not with \"GGUF\"", Quoted({reinterpret_cast<const char*>(magic), 4})));
  }
  uint32_t version = 0;
  HF_RETURN_IF_ERROR(Number("the version", &version));
  if (version != 0 && (version & 0xFFFF) == 0) {
    return Bad(fmt::format("version field {:#010x}: a big-endian GGUF file; only little-endian files are read", version));
  }
  if (version != 2 && version != 3) return Bad(fmt::format("GGUF version {}; versions 2 and 3 are read", version));
  HF_RETURN_IF_ERROR(Number("the tensor count", &tensor_count_));
  HF_RETURN_IF_ERROR(Number("the metadata count", &kv_count_));
  if (kv_count_ > kMaxKeys || kv_count_ > left() / kMinPairBytes) {
    return Bad(fmt::format("claims {} metadata pairs; {} bytes can hold at most {} and {} are accepted", kv_count_, left(),
                           left() / kMinPairBytes, kMaxKeys));
  }
  if (tensor_count_ > kMaxTensors || tensor_count_ > left() / kMinTensorBytes) {
    return Bad(fmt::format("claims {} tensors; {} bytes can hold at most {} and {} are accepted", tensor_count_, left(),
                           left() / kMinTensorBytes, kMaxTensors));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::Array(const std::string& what, GgufValue* value) {
  uint32_t element = 0;
  uint64_t count = 0;
  HF_RETURN_IF_ERROR(Number(what, &element));
  HF_RETURN_IF_ERROR(Number(what, &count));
  if (element > static_cast<uint32_t>(GgufType::kF64)) return Bad(fmt::format("{}: unknown array element type {}", what, element));
  value->element_ = static_cast<GgufType>(element);
  if (value->element_ == GgufType::kArray) return Bad(fmt::format("{}: arrays of arrays are not accepted", what));
  const bool strings = value->element_ == GgufType::kString;
  const uint64_t size = strings ? 8 : ElementBytes(value->element_);
  if (count > left() / size) {
    return Bad(fmt::format("{} claims {} elements of at least {} bytes, but only {} bytes follow", what, count, size, left()));
  }
  if (count > kMaxArrayElements - array_elements_) {
    return Bad(fmt::format("{} claims {} elements; all arrays together may have {}", what, count, kMaxArrayElements));
  }
  array_elements_ += count;
  value->count_ = count;
  if (!strings) {
    HF_RETURN_IF_ERROR(Take(count * size, what, &value->data_));
    if (value->element_ == GgufType::kBool) {
      for (uint64_t i = 0; i < count; ++i) {
        if (static_cast<uint8_t>(value->data_[i]) > 1) return Bad(fmt::format("{}: element {} is no boolean (0 or 1)", what, i));
      }
    }
    return absl::OkStatus();
  }
  value->starts_.reserve(count);  // 4 bytes for at least 8 of the file: no amplification
  for (uint64_t i = 0; i < count; ++i) {
    value->starts_.push_back(static_cast<uint32_t>(pos_));  // below kMaxMetadata
    std::string_view text;
    HF_RETURN_IF_ERROR(String(kMaxStringBytes, what, &text));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::Value(const std::string& what, GgufValue* value) {
  uint32_t type = 0;
  HF_RETURN_IF_ERROR(Number(what, &type));
  if (type > static_cast<uint32_t>(GgufType::kF64)) return Bad(fmt::format("{}: unknown value type {}", what, type));
  value->type_ = value->element_ = static_cast<GgufType>(type);
  switch (value->type_) {
    case GgufType::kArray: return Array(what, value);
    case GgufType::kString: {
      value->starts_.push_back(static_cast<uint32_t>(pos_));
      std::string_view text;
      return String(kMaxStringBytes, what, &text);
    }
    default: break;
  }
  HF_RETURN_IF_ERROR(Take(ElementBytes(value->type_), what, &value->data_));
  if (value->type_ == GgufType::kBool && static_cast<uint8_t>(value->data_[0]) > 1) {
    return Bad(fmt::format("{} is {}, no boolean (0 or 1)", what, static_cast<int>(value->data_[0])));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::Pair() {
  std::string_view key;
  HF_RETURN_IF_ERROR(String(kMaxKeyBytes, fmt::format("metadata key {}", key_order_.size()), &key));
  if (key.empty()) return Bad(fmt::format("metadata key {} is empty", key_order_.size()));
  if (values_.contains(absl::string_view(key.data(), key.size()))) return Bad(fmt::format("metadata key {} appears twice", Quoted(key)));
  GgufValue value;
  HF_RETURN_IF_ERROR(Value("metadata key " + Quoted(key), &value));
  key_order_.emplace_back(key);
  values_.emplace(std::string(key), std::move(value));
  return absl::OkStatus();
}

absl::Status GgufParser::Alignment() {
  const auto it = values_.find("general.alignment");
  if (it == values_.end()) return absl::OkStatus();
  if (it->second.type() != GgufType::kU32) {
    return Bad(fmt::format("general.alignment has type {}; it must be u32", GgufTypeName(it->second.type())));
  }
  alignment_ = it->second.Int();
  if (alignment_ < 8 || alignment_ > 65536 || (alignment_ & (alignment_ - 1)) != 0) {
    return Bad(fmt::format("general.alignment is {}; it must be a power of two from 8 to 65536", alignment_));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::TensorInfo() {
  GgufTensor t;
  std::string_view name;
  HF_RETURN_IF_ERROR(String(kMaxNameBytes, "a tensor's name", &name));
  if (name.empty()) return Bad("a tensor's name is empty");
  const std::string what = "tensor " + Quoted(name);
  t.name = name;
  t.part = index_;
  uint32_t dims = 0;
  HF_RETURN_IF_ERROR(Number(what, &dims));
  if (dims < 1 || dims > 4) return Bad(fmt::format("{} has {} dimensions; 1 to 4 are accepted", what, dims));
  t.dims_count = static_cast<int>(dims);
  for (uint32_t i = 0; i < dims; ++i) {
    uint64_t d = 0;
    HF_RETURN_IF_ERROR(Number(what, &d));
    if (d == 0 || d > kMaxDim) return Bad(fmt::format("{}: dimension {} is {}; 1 to {} are accepted", what, i, d, kMaxDim));
    t.dims[i] = static_cast<int64_t>(d);
  }
  uint32_t type = 0;
  HF_RETURN_IF_ERROR(Number(what, &type));
  HF_RETURN_IF_ERROR(Number(what, &t.offset));
  const auto dtype = kernels::DTypeFromGguf(type);
  if (!dtype) {
    return Bad(fmt::format("{} has tensor type {}, which is not supported (f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k to q6_k, "
                           "iq4_nl and mxfp4 are)", what, type));
  }
  t.type = *dtype;
  const kernels::DTypeInfo& info = kernels::InfoOf(t.type);
  if (t.dims[0] % info.block_elements != 0) {
    return Bad(fmt::format("{}: rows of {} elements cannot be {}, whose blocks hold {}", what, t.dims[0], info.name, info.block_elements));
  }
  // The element count is bounded too, so that nobody downstream can overflow on it either.
  uint64_t elements = 1, bytes = static_cast<uint64_t>(t.dims[0]) / info.block_elements;
  bool wraps = __builtin_mul_overflow(bytes, uint64_t{info.block_bytes}, &bytes);
  for (int i = 0; i < 4; ++i) wraps |= __builtin_mul_overflow(elements, static_cast<uint64_t>(t.dims[i]), &elements);
  for (int i = 1; i < 4; ++i) wraps |= __builtin_mul_overflow(bytes, static_cast<uint64_t>(t.dims[i]), &bytes);
  if (wraps || elements > static_cast<uint64_t>(INT64_MAX) || bytes > static_cast<uint64_t>(INT64_MAX)) {
    return Bad(fmt::format("{}: the size of {} elements of {} does not fit 63 bits", what, DimsText({t.dims.data(), dims}), info.name));
  }
  t.bytes = bytes;
  if (t.offset % alignment_ != 0) return Bad(fmt::format("{}: data offset {} is no multiple of the alignment {}", what, t.offset, alignment_));
  if (!file_->tensor_index_.emplace(t.name, file_->tensors_.size()).second) return Bad(fmt::format("{} appears twice", what));
  file_->tensors_.push_back(std::move(t));
  return absl::OkStatus();
}

absl::Status GgufParser::Layout(size_t first_tensor) {
  part_->meta_size = pos_;
  const uint64_t start = (pos_ + alignment_ - 1) / alignment_ * alignment_;  // pos_ <= 2^30
  part_->data_start = start;
  const uint64_t room = start <= part_->size ? part_->size - start : 0;
  std::vector<const GgufTensor*> order;
  order.reserve(file_->tensors_.size() - first_tensor);
  for (size_t i = first_tensor; i < file_->tensors_.size(); ++i) {
    GgufTensor& t = file_->tensors_[i];
    if (t.offset > room || t.bytes > room - t.offset) {
      return Bad(fmt::format("tensor {} needs {} bytes at data offset {}, but the file has only {} bytes of data (truncated?)",
                             Quoted(t.name), t.bytes, t.offset, room));
    }
    t.offset += start;
    order.push_back(&t);
  }
  std::sort(order.begin(), order.end(), [](const GgufTensor* a, const GgufTensor* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i]->offset - order[i - 1]->offset < order[i - 1]->bytes) {
      return Bad(fmt::format("tensors {} and {} overlap", Quoted(order[i - 1]->name), Quoted(order[i]->name)));
    }
  }
  return absl::OkStatus();
}

absl::Status GgufParser::Run() {
  HF_RETURN_IF_ERROR(Header());
  for (uint64_t i = 0; i < kv_count_; ++i) HF_RETURN_IF_ERROR(Pair());
  for (auto& [key, value] : values_) value.base_ = part_->meta;
  HF_RETURN_IF_ERROR(Alignment());
  const size_t first = file_->tensors_.size();
  for (uint64_t i = 0; i < tensor_count_; ++i) HF_RETURN_IF_ERROR(TensorInfo());
  HF_RETURN_IF_ERROR(Layout(first));
  if (index_ == 0) {
    file_->values_ = std::move(values_);
    file_->key_order_ = std::move(key_order_);
  }
  return absl::OkStatus();
}

}  // namespace holdfast::model
