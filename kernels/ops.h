#pragma once
// The seam between model code and a backend. Model code composes these operations and never touches an activation itself, so the same
// forward pass runs on the reference, the CPU and the CUDA backend.
//
// Contract for every backend:
//  - Batch invariance: a row's result depends on that row's inputs only, never on which rows share the call, on the number of threads
//    or on how a prompt was cut into steps. (The reductions over K and over keys have one fixed order.)
//  - One caller thread. Calls are ordered; a backend may run them asynchronously on one stream, results are complete after Sync().
//  - Shapes are checked with HF_CHECK: model code validated the file before it came here, so a wrong shape is our bug.
//  - Sizes are int64_t down to the kernel.
#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "kernels/buffer.h"
#include "kernels/draw.h"
#include "kernels/reservation.h"
#include "kernels/view.h"

namespace holdfast::kernels {

class DeviceCollective;            // device_collective.h
struct JoinSpec;

enum class WeightUse : uint8_t { kMatMul, kEmbedding, kBoth };  // kBoth: tied embedding, looked up by row and multiplied

struct WeightLayout {
  uint8_t layout = 0;
  int64_t bytes = 0;       // of one expert
  int64_t alignment = 64;
};

enum class Activation : uint8_t { kSilu, kGeluTanh, kSwigluOai };  // kSwigluOai: gpt-oss, clamp 7, alpha 1.702, (up + 1)

enum class RopeKind : uint8_t { kNeox, kInterleaved };  // pairs (i, i + d/2) or (2i, 2i + 1)

// YaRN: factor 1 = off.
struct RopeParams {
  RopeKind kind = RopeKind::kNeox;
  int32_t dims = 0;                // rotated dimensions, <= head_dim; the rest pass through
  float base = 10000.f;
  float scale = 1.f;               // positions are multiplied by it (linear scaling: 1/factor)
  Vec freq_factors;                // [dims/2] divisors of the angle, or empty
  float yarn_factor = 1.f;
  float yarn_original_context = 0.f;
  float yarn_beta_fast = 32.f;
  float yarn_beta_slow = 1.f;
  float attention_factor = 1.f;    // amplitude of cos and sin
};

struct AttentionParams {
  int32_t heads = 0;
  float scale = 1.f;
  float softcap = 0.f;             // 0 = off
  Vec sinks;                       // [heads] or empty: exp(sink) joins the denominator only
};

// One product of a MatMul call.
struct Product {
  Weight w;
  Mat y;                           // [T][w.out]
  Vec bias;                        // [w.out] or empty
  bool accumulate = false;         // y += instead of y =
};

// Experts chosen for each row: ids[t*k + j], weights[t*k + j], j < k, by descending logit, ties to the lowest id. Device memory.
struct Routing {
  int32_t* ids = nullptr;
  float* weights = nullptr;
  int32_t k = 0;
};

enum class RouterNorm : uint8_t {
  kSoftmaxTopK,        // softmax over the k chosen logits (== softmax over all, renormalised)
  kSoftmaxAll,         // softmax over all experts, the chosen ones not renormalised
};

struct MoeParams {
  Weight gate_up;                  // [experts][2F][D], rows 0..F-1 gate; or
  Weight gate, up;                 //   two of [experts][F][D]
  Weight down;                     // [experts][D][F]
  Vec gate_bias, up_bias;          // [experts][F] or empty
  Vec down_bias;                   // [experts][D] or empty
  Vec down_scale;                  // [experts] or empty: multiplies the expert's output
  Activation activation = Activation::kSilu;
};

class Ops {
 public:
  virtual ~Ops() = default;

  // For logs and `holdfast ctl status`: "cpu avx512-vnni-bf16, 2 threads".
  virtual std::string Describe() const = 0;

  // ---- memory ------------------------------------------------------------------------------------------------
  virtual Buffer Allocate(int64_t bytes) = 0;          // 64-byte aligned, contents undefined; null when there is no room, which Health() says
  virtual void Sync() = 0;                             // all earlier calls are done and visible to the host
  virtual void CopyToHost(std::byte* dst, const std::byte* src, int64_t bytes) = 0;  // after Sync() the bytes are there
  // dst is this backend's memory; src may be reused when the call returns.
  virtual void CopyFromHost(std::byte* dst, const std::byte* src, int64_t bytes) { std::memcpy(dst, src, static_cast<size_t>(bytes)); }
  // Address space of this backend's memory; see reservation.h. kResourceExhausted when there is none.
  virtual absl::StatusOr<std::unique_ptr<Reservation>> Reserve(int64_t bytes) { return ReserveHost(bytes); }
  // Bytes the device has left. Asked only where HostMemory() is false: the host's memory is model/memory.h's business.
  virtual int64_t FreeMemory() const { return 0; }
  // Whether the host may read and write what Allocate gives (after Sync). False: only through the two copies.
  virtual bool HostMemory() const { return true; }
  // After Sync(): ok, or the first thing that went wrong on the device since the backend was made: kResourceExhausted for memory, kAborted for
  // a device that failed; or, with other ranks, what became of them (device_collective.h). It stays so: results since then mean nothing, and
  // a new process must make a new backend.
  virtual absl::Status Health() const { return absl::OkStatus(); }

  // ---- other ranks ------------------------------------------------------------------------------------------------
  // Makes this backend one of a group whose devices talk to each other; every rank calls it, and each comes back when all have come or the
  // time is up. From then on ranks() is there, and Sync, like every other wait, ends when the peers are lost. kFailedPrecondition: the
  // devices cannot be joined, in the library's words; the codes of spec.look; Health() when the device failed.
  virtual absl::Status JoinRanks(const JoinSpec& spec);
  virtual void LeaveRanks() {}                              // back to one rank
  virtual DeviceCollective* ranks() { return nullptr; }  // null before JoinRanks; valid until LeaveRanks

  // ---- weights -------------------------------------------------------------------------------------------------
  // How this backend stores an [out][in] matrix of the type. layout 0 means the file's own bytes serve as they are (no copy needed).
  virtual WeightLayout LayoutOf(DType type, int64_t out, int64_t in, WeightUse use) const = 0;
  // Packs one expert's rows from the file into dst (layout.bytes long). Thread-safe; called from several loader threads.
  virtual void Pack(DType type, int64_t out, int64_t in, const WeightLayout& layout, const std::byte* src, std::byte* dst) const = 0;

  // ---- a step ------------------------------------------------------------------------------------------------------
  virtual void BeginStep(const Batch& batch) = 0;      // the batch of the calls below

  // How many rows a step of `rows` sequences with one row each is best run with: the executor adds rows that belong to no sequence (view.h).
  // A backend with no use for padding says `rows`.
  virtual int64_t PaddedRows(int64_t rows) const { return rows; }
  // Runs `work`: calls of this interface on the batch begun last, the same ones with the same arguments whenever `shape` is the same and the
  // batch has as many rows. A backend may remember them from the last time and not run `work` at all: it changes nothing on the host, and has
  // no copies from or to the host, no allocation and no wait. A step that is not of single rows is not remembered.
  virtual void Repeatable([[maybe_unused]] uint64_t shape, absl::FunctionRef<void()> work) { work(); }

  // out[t] = scale * row tokens[t] of the table. ids out of range are our bug (HF_CHECK).
  virtual void Embed(const Weight& table, float scale, Mat out) = 0;
  // As Embed, of a table that holds rows [first, first + table.out) of the vocabulary: the rows of other tokens become zero.
  virtual void EmbedPart(const Weight& table, int64_t first, float scale, Mat out) = 0;
  // out = x / sqrt(mean(x^2) + eps) * weight (weight may be empty). Per head: pass a [T*H][hd] view. out may alias x.
  virtual void RmsNorm(ConstMat x, Vec weight, float eps, Mat out) = 0;
  // As RmsNorm, of rows that products (MatMul, GatedMatMul, MoeFfn) are to read next: a backend may make what they read in the same pass. out is
  // not x.
  virtual void NormForProducts(ConstMat x, Vec weight, float eps, Mat out) { RmsNorm(x, weight, eps, out); }
  // x += rmsnorm(y) * weight.
  virtual void AddRmsNorm(Mat x, ConstMat y, Vec weight, float eps) = 0;
  // Every product reads the same x [T][in]; activations are quantised once.
  virtual void MatMul(ConstMat x, std::span<const Product> products) = 0;
  // out[T][F] = act(gate x) * (up x).
  virtual void GatedMatMul(ConstMat x, const Weight& gate, const Weight& up, Activation activation, Mat out) = 0;
  // y = act(gate) * up, elementwise.
  virtual void Gated(ConstMat gate, ConstMat up, Activation activation, Mat out) = 0;
  // x is [T][heads * head_dim]; rotates each head at the batch's positions, in place.
  virtual void Rope(Mat x, int32_t heads, const RopeParams& params) = 0;
  // Writes the step's K [T][kv_heads*head_dim_k] and V [T][kv_heads*head_dim_v] into the pages of their positions.
  virtual void StoreKv(const KvLayer& layer, ConstMat k, ConstMat v) = 0;
  // q [T][heads * head_dim_k] -> out [T][heads * head_dim_v]; causal, windowed as the layer's group says; reads the cache only (the
  // step's own keys were stored before), so the result does not depend on chunking. Head h reads kv head h / (heads / kv_heads).
  virtual void Attention(const KvLayer& layer, ConstMat q, const AttentionParams& params, Mat out) = 0;
  virtual void Route(ConstMat logits, RouterNorm norm, Routing out) = 0;
  // out[t] = sum_j weights[t,j] * down_scale[e] * (down_e(act(gate_e x_t) * (up_e x_t)) + down_bias_e), summed in order of j.
  virtual void MoeFfn(ConstMat x, const Routing& routing, const MoeParams& params, Mat out) = 0;

  virtual void Add(Mat x, ConstMat y) = 0;                       // x += y
  virtual void Scale(Mat x, float factor) = 0;                   // x *= factor
  virtual void ScaleColumns(Mat x, Vec factors) = 0;             // x[t][c] *= factors[c]
  virtual void Multiply(Mat x, ConstMat y) = 0;                  // x *= y
  virtual void ActivateInPlace(Mat x, Activation activation) = 0;
  virtual void Softcap(Mat x, float cap) = 0;                    // x = cap * tanh(x / cap)
  virtual void GatherRows(ConstMat x, std::span<const int32_t> rows, Mat out) = 0;  // out[i] = x[rows[i]]; rows is host memory

  // ---- drawing tokens ----------------------------------------------------------------------------------------------
  // False: the caller draws, on the host. True: Draw, and batches may await tokens (Batch::awaited).
  virtual bool DrawsTokens() const { return false; }
  // Memory for Draws of up to `rows` rows of `vocab` logits and for `slots` tokens a step; before the first Draw.
  virtual void ReserveDraws([[maybe_unused]] int64_t rows, [[maybe_unused]] int64_t slots, [[maybe_unused]] int64_t vocab) {}
  // Draws a token from each row of logits whose spec (one a row) has a slot; such a row's logits are overwritten. The token stays in its slot for
  // a batch that awaits it, until another is drawn into the slot; out[slot] is there after Sync, or after Wait for a later mark.
  virtual void Draw([[maybe_unused]] Mat logits, [[maybe_unused]] std::span<const DrawSpec> specs, [[maybe_unused]] Drawn* out) {}
  // A mark behind the calls so far, and the wait for it: as Sync, for what came before the mark. Marks are waited for in their order, and two at
  // most are not waited for.
  virtual uint64_t Mark() { return 0; }
  virtual void Wait([[maybe_unused]] uint64_t mark) { Sync(); }

  // ---- KV pages -----------------------------------------------------------------------------------------------------
  // Bytes of one page of one layer; a multiple of 64.
  virtual int64_t KvPageBytes(KvDType type, int32_t page_size, int32_t kv_heads, int32_t head_dim_k, int32_t head_dim_v) const = 0;
  virtual void CopyPage(std::byte* dst, const std::byte* src, int64_t bytes) = 0;
};

// The slow, obvious backend: double accumulation, weights in the file's layout, no quantisation of activations. The oracle.
std::unique_ptr<Ops> MakeReferenceOps();

struct CpuOptions {
  int threads = 0;                 // 0 = one per core this process may use
  std::string isa = "auto";        // auto | scalar | avx2 | avx512 | avx512vnni | avx512amx (the best the machine has is the limit)
};
// Null when `isa` is none of the names above. Threads beyond the cores this process may use are not started.
std::unique_ptr<Ops> MakeCpuOps(const CpuOptions& options);

struct CudaOptions {
  int device = 0;                  // as the driver counts (CUDA_VISIBLE_DEVICES)
  int devices = 1;                 // that must be there, so that all ranks of a group answer alike
  bool graphs = true;              // steps that come again are launched as CUDA graphs
};
// kUnimplemented: built without CUDA. kNotFound: no driver, or no device. kOutOfRange: fewer devices than that. kUnavailable: the device is
// busy (another process holds it, or its memory). kFailedPrecondition: the driver is too old, or this build has no code for the device.
absl::StatusOr<std::unique_ptr<Ops>> MakeCudaOps(const CudaOptions& options);

}  // namespace holdfast::kernels
