// Every rule of the hardened loader, each with a file that breaks it.
#include <catch2/catch.hpp>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>

#include "tests/unit/model/files.h"
#include "worker/model/gguf_file.h"
#include "worker/model/tools/gguf_writer.h"

namespace holdfast::test {
namespace {

using model::GgufFile;
using model::GgufWriter;

std::string Message(const absl::Status& s) { return std::string(s.message()); }

// The status of parsing; OK when it parses.
absl::Status Parse(std::string bytes) { return GgufFile::FromBytes(std::move(bytes), "test.gguf").status(); }

void CheckRefused(std::string bytes, const std::string& needle) {
  const absl::Status s = Parse(std::move(bytes));
  CAPTURE(needle, Message(s));
  CHECK(s.code() == absl::StatusCode::kInvalidArgument);
  CHECK(Message(s).find(needle) != std::string::npos);
  CHECK(Message(s).find("test.gguf") != std::string::npos);
}

std::string Header(uint32_t version, uint64_t tensors, uint64_t pairs) {
  std::string out = "GGUF";
  model::AppendU32(&out, version);
  model::AppendU64(&out, tensors);
  model::AppendU64(&out, pairs);
  return out;
}

std::string Pair(const std::string& key, uint32_t type, const std::string& value) {
  std::string out;
  model::AppendGgufString(&out, key);
  model::AppendU32(&out, type);
  return out + value;
}

std::string U64Text(uint64_t v) {
  std::string out;
  model::AppendU64(&out, v);
  return out;
}
std::string U32Text(uint32_t v) {
  std::string out;
  model::AppendU32(&out, v);
  return out;
}

// A file with one tensor of this info and `data` bytes of data.
std::string OneTensor(const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset, size_t data, const std::string& name = "t") {
  std::string out = Header(3, 1, 0);
  model::AppendGgufString(&out, name);
  model::AppendU32(&out, static_cast<uint32_t>(dims.size()));
  for (const uint64_t d : dims) model::AppendU64(&out, d);
  model::AppendU32(&out, type);
  model::AppendU64(&out, offset);
  out.append((32 - out.size() % 32) % 32, '\0');
  return out + std::string(data, '\1');
}

GgufWriter Valid() {
  GgufWriter w;
  w.String("general.architecture", "llama");
  w.U32("a.u32", 7);
  w.I32("a.i32", -7);
  w.F32("a.f32", 1.5f);
  w.Bool("a.bool", true);
  w.Strings("a.strings", {"x", "", "yz"});
  w.I32s("a.ints", {1, -2, 3});
  w.Bools("a.bools", {true, false});
  const std::vector<float> values(64, 0.25f);
  w.Tensor("one", {32, 2}, kernels::DType::kF32, values);
  w.Tensor("two", {64}, kernels::DType::kQ8_0, values);
  return w;
}

}  // namespace

TEST_CASE("a valid file reads back as written", "[gguf]") {
  auto file = GgufFile::FromBytes(Valid().Finish(), "test.gguf");
  REQUIRE(file.ok());
  const GgufFile& f = **file;
  CHECK(**f.Uint("a.u32") == 7);
  CHECK(**f.Float("a.f32") == 1.5);
  CHECK(**f.Bool("a.bool"));
  CHECK(**f.String("general.architecture") == "llama");
  const auto strings = f.Array("a.strings");
  REQUIRE(strings.ok());
  REQUIRE((*strings)->size() == 3);
  CHECK((*strings)->String(0) == "x");
  CHECK((*strings)->String(1).empty());
  CHECK((*strings)->String(2) == "yz");
  CHECK((*f.Array("a.ints"))->Int(1) == -2);
  CHECK(!(*f.Array("a.bools"))->Bool(1));
  CHECK(f.Uint("absent")->has_value() == false);
  CHECK(f.keys().size() == 8);
  REQUIRE(f.tensors().size() == 2);
  const auto* two = f.FindTensor("two");
  REQUIRE(two != nullptr);
  CHECK(two->bytes == 68);
  std::byte block[34];
  REQUIRE(f.Read(*two, 34, 34, block).ok());
  CHECK(static_cast<int>(block[2]) == 127);  // a constant block: every code is the largest
  // Wrong types are errors that name the key, not absent values.
  CHECK(Message(f.Uint("a.f32").status()).find("a.f32") != std::string::npos);
  CHECK(!f.Uint("a.i32").ok());
  CHECK(!f.String("a.u32").ok());
  CHECK(!f.Bool("a.u32").ok());
  CHECK(!f.Array("a.u32").ok());
  CHECK(!f.Float("a.u32").ok());
}

TEST_CASE("headers that lie are refused", "[gguf]") {
  CheckRefused("GG", "truncated");
  CheckRefused("GGML" + std::string(60, '\0'), "not a GGUF file");
  CheckRefused(Header(0, 0, 0), "version 0");
  CheckRefused(Header(1, 0, 0), "version 1");
  CheckRefused(Header(4, 0, 0), "version 4");
  CheckRefused(Header(0x03000000, 0, 0), "big-endian");
  CheckRefused(Header(3, uint64_t{1} << 60, 0), "tensors");
  CheckRefused(Header(3, 0, uint64_t{1} << 40), "metadata pairs");
  CheckRefused(Header(3, UINT64_MAX, 0) + std::string(1000, 'x'), "tensors");
  CheckRefused(Header(3, 0, 3) + std::string(41, 'x'), "at most 2");  // 14 bytes a pair is the least
  CheckRefused(Header(3, 70000, 0) + std::string(70000 * 33, 'x'), "65536");
}

TEST_CASE("keys and values that lie are refused", "[gguf]") {
  const std::string pad(64, '\0');
  CheckRefused(Header(3, 0, 1) + U64Text(INT64_MAX) + pad, "claims a length");
  CheckRefused(Header(3, 0, 1) + U64Text(70000) + std::string(80000, 'k'), "claims a length");
  CheckRefused(Header(3, 0, 1) + U64Text(1000) + pad, "truncated");
  CheckRefused(Header(3, 0, 1) + Pair("", 4, U32Text(1)) + pad, "empty");
  CheckRefused(Header(3, 0, 1) + Pair("k", 13, "") + pad, "unknown value type 13");
  CheckRefused(Header(3, 0, 1) + Pair("k", 0xFFFFFFFF, "") + pad, "unknown value type");
  CheckRefused(Header(3, 0, 2) + Pair("k", 4, U32Text(1)) + Pair("k", 4, U32Text(1)) + pad, "appears twice");
  CheckRefused(Header(3, 0, 1) + Pair("k", 7, "\x02") + pad, "boolean");
  CheckRefused(Header(3, 0, 1) + Pair("k", 9, U32Text(7) + U64Text(2) + "\x01\x05") + pad, "boolean");
  CheckRefused(Header(3, 0, 1) + Pair("k", 8, U64Text(INT64_MAX)) + pad, "claims a length");
  CheckRefused(Header(3, 0, 1) + Pair("k", 8, U64Text(uint64_t{65} << 20)) + pad, "claims a length");
  CheckRefused(Header(3, 0, 1) + Pair("k", 9, U32Text(9) + U64Text(1)) + pad, "arrays of arrays");
  CheckRefused(Header(3, 0, 1) + Pair("k", 9, U32Text(99) + U64Text(1)) + pad, "element type 99");
  CheckRefused(Header(3, 0, 1) + Pair("k", 9, U32Text(4) + U64Text(uint64_t{1} << 63)) + pad, "elements");
  CheckRefused(Header(3, 0, 1) + Pair("k", 9, U32Text(4) + U64Text(uint64_t{1} << 62)) + pad, "elements");  // 4 * 2^62 wraps to 0
  CheckRefused(Header(3, 0, 1) + Pair("k", 9, U32Text(8) + U64Text(100)) + pad, "elements");
  CheckRefused(Header(3, 0, 1) + Pair("k", 9, U32Text(0) + U64Text((uint64_t{1} << 26) + 1)) + std::string((1 << 26) + 64, '\0'), "all arrays together");
}

TEST_CASE("alignments that cannot be are refused", "[gguf]") {
  const std::string pad(64, '\0');
  for (const uint32_t bad : {0u, 1u, 4u, 12u, 31u, 131072u}) {
    CheckRefused(Header(3, 0, 1) + Pair("general.alignment", 4, U32Text(bad)) + pad, "power of two");
  }
  CheckRefused(Header(3, 0, 1) + Pair("general.alignment", 10, U64Text(32)) + pad, "must be u32");
  CheckRefused(Header(3, 0, 1) + Pair("general.alignment", 8, U64Text(2) + "32") + pad, "must be u32");
  GgufWriter w;
  w.U32("general.alignment", 8);
  w.set_alignment(8);
  w.Tensor("t", {2}, kernels::DType::kF32, std::vector<float>{1, 2});
  w.Tensor("u", {2}, kernels::DType::kF32, std::vector<float>{3, 4});
  auto file = GgufFile::FromBytes(w.Finish(), "test.gguf");
  REQUIRE(file.ok());
  float u[2];
  REQUIRE((*file)->Read(*(*file)->FindTensor("u"), 0, 8, reinterpret_cast<std::byte*>(u)).ok());
  CHECK(u[1] == 4.f);
}

TEST_CASE("tensors that lie are refused", "[gguf]") {
  CHECK(Parse(OneTensor({32}, 0, 0, 128)).ok());
  CheckRefused(OneTensor({}, 0, 0, 128), "0 dimensions");
  CheckRefused(OneTensor({1, 1, 1, 1, 1}, 0, 0, 128), "5 dimensions");
  CheckRefused(OneTensor({0}, 0, 0, 128), "dimension 0 is 0");
  CheckRefused(OneTensor({32, 0}, 0, 0, 128), "dimension 1 is 0");
  CheckRefused(OneTensor({uint64_t{1} << 63}, 0, 0, 128), "dimension 0");
  CheckRefused(OneTensor({UINT64_MAX}, 0, 0, 128), "dimension 0");
  CheckRefused(OneTensor({uint64_t{1} << 32, uint64_t{1} << 32}, 0, 0, 128), "63 bits");      // product 2^64
  CheckRefused(OneTensor({uint64_t{1} << 40, uint64_t{1} << 23}, 24, 0, 128), "type 24");      // I8 is not a weight type
  CheckRefused(OneTensor({uint64_t{1} << 40, uint64_t{1} << 22}, 0, 0, 128), "63 bits");       // 2^62 elements of 4 bytes
  CheckRefused(OneTensor({uint64_t{1} << 30, uint64_t{1} << 28}, 0, 0, 128), "only");          // fits 63 bits, not the file
  for (const uint32_t type : {4u, 5u, 9u, 15u, 31u, 36u, 40u, 43u, 0xFFFFFFFFu}) CheckRefused(OneTensor({256}, type, 0, 4096), "not supported");
  CheckRefused(OneTensor({33}, 2, 0, 128), "blocks hold 32");
  CheckRefused(OneTensor({128}, 12, 0, 1024), "blocks hold 256");
  CheckRefused(OneTensor({32}, 0, 16, 256), "multiple of the alignment");
  CheckRefused(OneTensor({32}, 0, 32, 128), "only");
  CheckRefused(OneTensor({32}, 0, UINT64_MAX - 31, 128), "only");
  CheckRefused(OneTensor({32}, 0, 0, 127), "only");
  CheckRefused(OneTensor({32}, 0, 0, 128, ""), "name is empty");
  CheckRefused(OneTensor({32}, 0, 0, 128, std::string(64, 'n')), "claims a length");
  CHECK(Parse(OneTensor({32}, 0, 0, 128, std::string(63, 'n'))).ok());
  GgufWriter twice;
  const std::vector<float> values(32, 1.f);
  twice.Tensor("t", {32}, kernels::DType::kF32, values);
  twice.Tensor("t", {32}, kernels::DType::kF32, values);
  CheckRefused(twice.Finish(), "appears twice");
  std::string overlap = Header(3, 2, 0);
  for (const char* name : {"a", "b"}) {
    model::AppendGgufString(&overlap, name);
    model::AppendU32(&overlap, 1);
    model::AppendU64(&overlap, 32);
    model::AppendU32(&overlap, 0);
    model::AppendU64(&overlap, name[0] == 'a' ? 0 : 64);
  }
  overlap.append((32 - overlap.size() % 32) % 32, '\0');
  CheckRefused(overlap + std::string(256, '\0'), "overlap");
  // Names of any bytes are printable in messages.
  const absl::Status odd = Parse(OneTensor({0}, 0, 0, 128, "a\n\"\x01"));
  CHECK(Message(odd).find("a\\x0a\\x22\\x01") != std::string::npos);
}

TEST_CASE("a file cut anywhere is refused", "[gguf]") {
  const std::string whole = Valid().Finish();
  for (size_t n = 0; n + 1 < whole.size(); ++n) {
    // The last tensor ends before its padding does.
    const bool complete = n >= whole.size() - (32 - 68 % 32);
    CAPTURE(n, whole.size());
    CHECK(Parse(whole.substr(0, n)).ok() == complete);
  }
}

TEST_CASE("paths that are no regular file are refused by name", "[gguf]") {
  TempDir dir;
  CHECK(GgufFile::Open(dir.path() + "/none.gguf").status().code() == absl::StatusCode::kNotFound);
  CHECK(Message(GgufFile::Open(dir.path()).status()).find("a directory") != std::string::npos);
  const std::string fifo = dir.path() + "/fifo";
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(Message(GgufFile::Open(fifo).status()).find("not a regular file") != std::string::npos);  // and does not wait for a writer
  dir.Write("empty.gguf", "");
  CHECK(Message(GgufFile::Open(dir.path() + "/empty.gguf").status()).find("empty") != std::string::npos);
  if (geteuid() != 0) {
    const std::string path = dir.Write("secret.gguf", Valid().Finish());
    REQUIRE(chmod(path.c_str(), 0) == 0);
    CHECK(GgufFile::Open(path).status().code() == absl::StatusCode::kPermissionDenied);
  } else {
    WARN("skipped: unreadable file (running as root)");
  }
}

TEST_CASE("a file truncated or rewritten while open gives an error, not a signal", "[gguf]") {
  TempDir dir;
  const std::string path = dir.Write("m.gguf", Valid().Finish());
  auto file = GgufFile::Open(path);
  REQUIRE(file.ok());
  const auto* t = (*file)->FindTensor("two");
  std::byte buffer[68];
  REQUIRE((*file)->Read(*t, 0, 68, buffer).ok());
  REQUIRE((*file)->Unchanged().ok());
  REQUIRE(truncate(path.c_str(), static_cast<off_t>(t->offset + 10)) == 0);
  const absl::Status s = (*file)->Read(*t, 0, 68, buffer);
  CHECK(s.code() == absl::StatusCode::kDataLoss);
  CHECK(Message(s).find("two") != std::string::npos);
  CHECK(Message(s).find("truncated") != std::string::npos);
  CHECK((*file)->Unchanged().code() == absl::StatusCode::kDataLoss);
  CHECK(!(*file)->Fingerprint().ok());
  CHECK(**(*file)->String("general.architecture") == "llama");  // metadata was copied
}

TEST_CASE("split files open from their first part", "[gguf]") {
  TempDir dir;
  const std::vector<float> values(32, 1.f);
  const auto part = [&](uint32_t number, uint32_t count, uint32_t total, const std::string& tensor) {
    GgufWriter w;
    if (number == 0) w.String("general.architecture", "llama");
    w.U32("split.no", number);
    w.U32("split.count", count);
    w.I32("split.tensors.count", static_cast<int32_t>(total));
    w.Tensor(tensor, {32}, kernels::DType::kF32, std::vector<float>(32, static_cast<float>(number)));
    return w.Finish();
  };
  const std::string first = dir.Write("m-00001-of-00003.gguf", part(0, 3, 3, "a"));
  CHECK(GgufFile::Open(first).status().code() == absl::StatusCode::kNotFound);  // the others are missing
  const std::string second = dir.Write("m-00002-of-00003.gguf", part(1, 3, 3, "b"));
  dir.Write("m-00003-of-00003.gguf", part(2, 3, 3, "c"));
  auto file = GgufFile::Open(first);
  INFO(file.status());
  REQUIRE(file.ok());
  REQUIRE((*file)->tensors().size() == 3);
  float v[32];
  REQUIRE((*file)->Read(*(*file)->FindTensor("c"), 0, 128, reinterpret_cast<std::byte*>(v)).ok());
  CHECK(v[31] == 2.f);
  CHECK(Message(GgufFile::Open(second).status()).find("m-00001-of-00003.gguf") != std::string::npos);
  dir.Write("m-00003-of-00003.gguf", part(1, 3, 3, "c"));
  CHECK(Message(GgufFile::Open(first).status()).find("split.no must be 2") != std::string::npos);
  dir.Write("m-00003-of-00003.gguf", part(2, 3, 3, "a"));
  CHECK(Message(GgufFile::Open(first).status()).find("appears twice") != std::string::npos);
  dir.Write("m-00003-of-00003.gguf", part(2, 3, 3, "c"));
  dir.Write("m-00001-of-00003.gguf", part(0, 3, 4, "a"));
  CHECK(Message(GgufFile::Open(first).status()).find("split.tensors.count is 4") != std::string::npos);
  const std::string other = dir.Write("renamed.gguf", part(0, 3, 3, "a"));
  CHECK(Message(GgufFile::Open(other).status()).find("-00001-of-00003.gguf") != std::string::npos);
}

TEST_CASE("the fingerprint follows metadata, layout and weights, not the place", "[gguf]") {
  TempDir dir;
  const auto print = [&](const GgufWriter& w, const std::string& name) {
    auto file = GgufFile::Open(dir.Write(name, w.Finish()));
    REQUIRE(file.ok());
    return *(*file)->Fingerprint();
  };
  const std::string base = print(Valid(), "a.gguf");
  CHECK(base.size() == 32);
  CHECK(print(Valid(), "b.gguf") == base);
  GgufWriter more = Valid();
  more.U32("extra", 1);
  CHECK(print(more, "c.gguf") != base);
  std::string bytes = Valid().Finish();
  bytes[bytes.size() - 40] ^= 1;
  auto changed = GgufFile::FromBytes(bytes, "d.gguf");
  REQUIRE(changed.ok());
  CHECK(*(*changed)->Fingerprint() != base);
}

}  // namespace holdfast::test
