#include "worker/model/gguf_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "proto/base/check.h"
#include "proto/base/random.h"
#include "proto/base/status_wire.h"
#include "worker/model/gguf_parser.h"

namespace holdfast::model {
namespace {

absl::string_view Abseil(std::string_view s) { return {s.data(), s.size()}; }

int64_t MtimeNs(const struct stat& st) { return int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec; }

template <class T>
T ReadElement(const std::byte* data, size_t i) {
  T v;
  memcpy(&v, data + i * sizeof(T), sizeof(T));
  return v;
}

// Two independent lanes of a multiply-free mixing hash; not cryptographic: it names files, it does not authenticate them.
struct Hash128 {
  uint64_t a = 0x6a09e667f3bcc908ull, b = 0xbb67ae8584caa73bull;
  void Add(uint64_t x) {
    a = Mix64(a ^ x);
    b = Mix64(b + Mix64(x ^ 0xa54ff53a5f1d36f1ull));
  }
  void Add(const std::byte* p, uint64_t n) {
    Add(n);
    for (; n >= 8; n -= 8, p += 8) Add(ReadElement<uint64_t>(p, 0));
    uint64_t tail = 0;
    memcpy(&tail, p, n);
    Add(tail);
  }
};

// ".../name-00001-of-00003.gguf": the prefix before the number, or nothing.
struct SplitName {
  std::string prefix;
  unsigned number = 0, count = 0;
};
std::optional<SplitName> ParseSplitName(const std::string& path) {
  constexpr size_t kTail = 20;  // -00001-of-00003.gguf
  if (path.size() <= kTail) return std::nullopt;
  const std::string tail = path.substr(path.size() - kTail);
  SplitName name;
  int end = 0;
  if (sscanf(tail.c_str(), "-%5u-of-%5u.gguf%n", &name.number, &name.count, &end) != 2 || end != static_cast<int>(kTail)) return std::nullopt;
  name.prefix = path.substr(0, path.size() - kTail);
  return name;
}

}  // namespace

std::string_view GgufTypeName(GgufType type) {
  constexpr std::string_view kNames[] = {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};
  return kNames[static_cast<size_t>(type)];
}

std::string DimsText(std::span<const int64_t> dims) { return fmt::format("{{{}}}", fmt::join(dims.begin(), dims.end(), ", ")); }

std::string Quoted(std::string_view s) {
  std::string out = "\"";
  for (size_t i = 0; i < s.size(); ++i) {
    if (i == 100) {
      out += "...";
      break;
    }
    const unsigned char c = static_cast<unsigned char>(s[i]);
    if (c < 0x20 || c == 0x7f || c == '"' || c == '\\') {
      out += fmt::format("\\x{:02x}", c);
    } else {
      out += s[i];
    }
  }
  return out + "\"";
}

bool GgufValue::is_integer() const {
  switch (element_) {
    case GgufType::kF32:
    case GgufType::kF64:
    case GgufType::kBool:
    case GgufType::kString:
    case GgufType::kArray: return false;
    default: return true;
  }
}

int64_t GgufValue::Int(size_t i) const {
  HF_CHECK(i < count_);
  switch (element_) {
    case GgufType::kU8: return ReadElement<uint8_t>(data_, i);
    case GgufType::kI8: return ReadElement<int8_t>(data_, i);
    case GgufType::kU16: return ReadElement<uint16_t>(data_, i);
    case GgufType::kI16: return ReadElement<int16_t>(data_, i);
    case GgufType::kU32: return ReadElement<uint32_t>(data_, i);
    case GgufType::kI32: return ReadElement<int32_t>(data_, i);
    case GgufType::kI64: return ReadElement<int64_t>(data_, i);
    case GgufType::kU64: return static_cast<int64_t>(std::min<uint64_t>(ReadElement<uint64_t>(data_, i), INT64_MAX));
    default: break;
  }
  CheckFailed(__FILE__, __LINE__, "value is an integer", std::string(GgufTypeName(element_)));
}

double GgufValue::Float(size_t i) const {
  HF_CHECK(i < count_ && is_float());
  return element_ == GgufType::kF32 ? ReadElement<float>(data_, i) : ReadElement<double>(data_, i);
}

bool GgufValue::Bool(size_t i) const {
  HF_CHECK(i < count_ && element_ == GgufType::kBool);
  return data_[i] != std::byte{0};
}

std::string_view GgufValue::String(size_t i) const {
  HF_CHECK(i < count_ && element_ == GgufType::kString);
  const std::byte* p = base_ + starts_[i];
  return {reinterpret_cast<const char*>(p + 8), ReadElement<uint64_t>(p, 0)};
}

GgufFile::GgufFile() = default;
GgufFile::~GgufFile() = default;

absl::StatusOr<std::unique_ptr<GgufFile::Part>> GgufFile::OpenPart(const std::string& path) {
  auto part = std::make_unique<Part>();
  part->path = path;
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  part->fd.Reset(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!part->fd) {
    const std::string message = fmt::format("{}: cannot open: {}", path, strerror(errno));
    if (errno == ENOENT || errno == ENOTDIR) return absl::NotFoundError(message);
    if (errno == EACCES || errno == EPERM) return absl::PermissionDeniedError(message);
    return absl::FailedPreconditionError(message);
  }
  struct stat st;
  if (fstat(part->fd.get(), &st) != 0) return absl::FailedPreconditionError(fmt::format("{}: cannot stat: {}", path, strerror(errno)));
  if (!S_ISREG(st.st_mode)) {
    return absl::FailedPreconditionError(fmt::format("{}: is {}, not a regular file", path, S_ISDIR(st.st_mode) ? "a directory" : "a device or pipe"));
  }
  part->size = st.st_size;
  part->mtime_ns = MtimeNs(st);
  if (part->size == 0) return absl::InvalidArgumentError(path + ": the file is empty");
  return part;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  std::unique_ptr<GgufFile> file(new GgufFile);
  file->path_ = path;
  HF_ASSIGN_OR_RETURN(auto part, OpenPart(path));
  file->parts_.push_back(std::move(part));
  GgufParser parser(file.get(), file->parts_[0].get(), 0);
  HF_RETURN_IF_ERROR(parser.Run());
  HF_RETURN_IF_ERROR(file->OpenOtherParts());
  return file;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::FromBytes(std::string bytes, std::string name) {
  std::unique_ptr<GgufFile> file(new GgufFile);
  file->path_ = name;
  auto part = std::make_unique<Part>();
  part->path = std::move(name);
  part->bytes = std::move(bytes);
  part->size = part->meta_loaded = part->meta_capacity = part->bytes.size();
  part->meta = reinterpret_cast<std::byte*>(part->bytes.data());
  file->parts_.push_back(std::move(part));
  GgufParser parser(file.get(), file->parts_[0].get(), 0);
  HF_RETURN_IF_ERROR(parser.Run());
  HF_ASSIGN_OR_RETURN(const auto count, file->Uint("split.count"));
  if (count.value_or(1) > 1) return absl::InvalidArgumentError(file->path_ + ": a part of a split file needs a path on disk");
  return file;
}

absl::Status GgufFile::OpenOtherParts() {
  HF_ASSIGN_OR_RETURN(const auto count, Uint("split.count"));
  if (count.value_or(1) <= 1) return absl::OkStatus();
  HF_ASSIGN_OR_RETURN(const auto number, Uint("split.no"));
  HF_ASSIGN_OR_RETURN(const auto total, Uint("split.tensors.count"));
  const auto name = ParseSplitName(path_);
  if (number.value_or(0) != 0) {
    return absl::InvalidArgumentError(fmt::format("{}: part {} of {} of a split model; give the first part ({})", path_, *number + 1, *count,
                                                  name ? fmt::format("{}-{:05}-of-{:05}.gguf", name->prefix, 1, name->count) : "...-00001-of-..."));
  }
  if (*count > 65535) return absl::InvalidArgumentError(fmt::format("{}: split.count is {}; at most 65535", path_, *count));
  if (!name || name->number != 1 || name->count != *count) {
    return absl::InvalidArgumentError(fmt::format("{}: the file says it is the first of {} parts, so its name must end in -00001-of-{:05}.gguf "
                                                  "for the others to be found", path_, *count, *count));
  }
  for (uint32_t i = 1; i < *count; ++i) {
    // From our own path only: a name taken from metadata could point anywhere.
    const std::string path = fmt::format("{}-{:05}-of-{:05}.gguf", name->prefix, i + 1, *count);
    HF_ASSIGN_OR_RETURN(auto part, OpenPart(path));
    parts_.push_back(std::move(part));
    GgufParser parser(this, parts_.back().get(), i);
    HF_RETURN_IF_ERROR(parser.Run());
    const auto it = parser.values().find("split.no");
    if (it == parser.values().end() || it->second.type() == GgufType::kArray || !it->second.is_integer() || it->second.Int() != i) {
      return absl::InvalidArgumentError(fmt::format("{}: split.no must be {} in this part", path, i));
    }
  }
  if (total && *total != tensors_.size()) {
    return absl::InvalidArgumentError(fmt::format("{}: split.tensors.count is {}, but the {} parts hold {} tensors", path_, *total, *count,
                                                  tensors_.size()));
  }
  return absl::OkStatus();
}

uint64_t GgufFile::file_bytes() const {
  uint64_t sum = 0;
  for (const auto& part : parts_) sum += part->size;
  return sum;
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto it = tensor_index_.find(Abseil(name));
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

const GgufValue* GgufFile::Find(std::string_view key) const {
  const auto it = values_.find(Abseil(key));
  return it == values_.end() ? nullptr : &it->second;
}

namespace {
absl::Status WrongType(const std::string& path, std::string_view key, const GgufValue& value, std::string_view want) {
  return absl::InvalidArgumentError(fmt::format("{}: metadata key {} has type {}; {} is expected", path, Quoted(key), GgufTypeName(value.type()), want));
}
}  // namespace

absl::StatusOr<std::optional<uint64_t>> GgufFile::Uint(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<uint64_t>();
  if (value->type() == GgufType::kArray || !value->is_integer()) return WrongType(path_, key, *value, "an integer");
  if (value->Int() < 0) return absl::InvalidArgumentError(fmt::format("{}: metadata key {} is {}; it cannot be negative", path_, Quoted(key), value->Int()));
  return std::optional<uint64_t>(value->Int());
}

absl::StatusOr<std::optional<double>> GgufFile::Float(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<double>();
  if (value->type() == GgufType::kArray || !value->is_float()) return WrongType(path_, key, *value, "f32 or f64");
  if (!std::isfinite(value->Float())) return absl::InvalidArgumentError(fmt::format("{}: metadata key {} is {}", path_, Quoted(key), value->Float()));
  return std::optional<double>(value->Float());
}

absl::StatusOr<std::optional<bool>> GgufFile::Bool(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<bool>();
  if (value->type() != GgufType::kBool) return WrongType(path_, key, *value, "bool");
  return std::optional<bool>(value->Bool());
}

absl::StatusOr<std::optional<std::string_view>> GgufFile::String(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return std::optional<std::string_view>();
  if (value->type() != GgufType::kString) return WrongType(path_, key, *value, "a string");
  return std::optional<std::string_view>(value->String());
}

absl::StatusOr<const GgufValue*> GgufFile::Array(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value != nullptr && value->type() != GgufType::kArray) return WrongType(path_, key, *value, "an array");
  return value;
}

std::vector<std::string_view> GgufFile::keys() const { return {key_order_.begin(), key_order_.end()}; }

absl::Status GgufFile::Read(const GgufTensor& tensor, uint64_t offset, uint64_t bytes, std::byte* dst) const {
  HF_CHECK(tensor.part < parts_.size() && offset <= tensor.bytes && bytes <= tensor.bytes - offset);
  absl::Status status = parts_[tensor.part]->ReadAt(tensor.offset + offset, bytes, dst);
  if (!status.ok()) return absl::Status(status.code(), fmt::format("tensor {}: {}", Quoted(tensor.name), MessageOf(status)));
  return status;
}

absl::Status GgufFile::Unchanged() const {
  for (const auto& part : parts_) {
    if (!part->fd) continue;
    struct stat st;
    if (fstat(part->fd.get(), &st) != 0) return absl::DataLossError(fmt::format("{}: cannot stat: {}", part->path, strerror(errno)));
    if (static_cast<uint64_t>(st.st_size) != part->size || MtimeNs(st) != part->mtime_ns) {
      return absl::DataLossError(fmt::format("{}: the file was changed while it was being read ({} bytes at first, {} now)", part->path,
                                             part->size, st.st_size));
    }
  }
  return absl::OkStatus();
}

uint64_t GgufFile::modified() const {
  uint64_t mix = 0;
  for (const auto& part : parts_) mix = Mix64(mix ^ static_cast<uint64_t>(part->mtime_ns));
  return mix;
}

void GgufFile::Prefetch(const GgufTensor& tensor) const {
  const Part& part = *parts_[tensor.part];
  if (part.fd) posix_fadvise(part.fd.get(), static_cast<off_t>(tensor.offset), static_cast<off_t>(tensor.bytes), POSIX_FADV_WILLNEED);
}

absl::StatusOr<std::string> GgufFile::Fingerprint() const {
  constexpr uint64_t kSample = 256;
  Hash128 hash;
  for (const auto& part : parts_) {
    hash.Add(part->size);
    hash.Add(part->meta, part->meta_size);
  }
  std::byte sample[kSample];
  for (const GgufTensor& t : tensors_) {
    const uint64_t n = std::min(kSample, t.bytes);
    for (const uint64_t at : {(t.bytes - n) / 3, t.bytes - n}) {
      HF_RETURN_IF_ERROR(Read(t, at, n, sample));
      hash.Add(sample, n);
    }
  }
  return fmt::format("{:016x}{:016x}", hash.a, hash.b);
}

}  // namespace holdfast::model
