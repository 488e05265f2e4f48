#include "tests/support/model_harness.h"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "proto/base/check.h"
#include "proto/base/status_wire.h"

namespace holdfast::test {

absl::StatusOr<std::unique_ptr<ModelHarness>> ModelHarness::Open(const std::string& path, kernels::Ops* ops, const HarnessOptions& options) {
  HF_ASSIGN_OR_RETURN(const auto file, model::GgufFile::Open(path));
  return Open(*file, ops, options);
}

absl::StatusOr<std::unique_ptr<ModelHarness>> ModelHarness::Open(const model::GgufFile& file, kernels::Ops* ops, const HarnessOptions& options) {
  HF_ASSIGN_OR_RETURN(const model::Hparams whole, model::ReadHparams(file));
  const uint32_t rank = options.ranks == nullptr ? 0 : options.ranks->rank(), size = options.ranks == nullptr ? 1 : options.ranks->size();
  HF_ASSIGN_OR_RETURN(const model::Shard shard, model::MakeShard(file, whole, rank, size));
  HF_ASSIGN_OR_RETURN(const model::TensorPlan tensors, model::TensorPlan::Make(file, whole, shard));
  const model::Hparams hparams = model::HparamsOf(shard, whole);
  model::WeightOptions weight_options;
  weight_options.threads = 2;
  weight_options.check_values = true;
  HF_ASSIGN_OR_RETURN(auto weights, model::WeightStore::Create(file, tensors, *ops, weight_options));
  HF_ASSIGN_OR_RETURN(const model::KvPlan plan, model::MakeKvPlan(hparams, *ops, options.dtype, options.page_size));
  std::unique_ptr<ModelHarness> h(new ModelHarness);
  h->ops_ = ops;
  h->divided_ = options.ranks != nullptr && options.ranks->size() > 1;
  HF_ASSIGN_OR_RETURN(h->model_, model::Model::Create(hparams, std::move(weights), options.ranks));
  kv::CacheShape cache;
  cache.page_size = static_cast<uint32_t>(options.page_size);
  for (const model::KvGroup& g : plan.groups) cache.groups.push_back({g.window, options.pages, options.pages});
  HF_ASSIGN_OR_RETURN(h->storage_, exec::KvStorage::Create(*ops, plan, cache, {}));
  static std::atomic<uint64_t> shapes = uint64_t{1} << 32;   // an executor's are others
  h->shape_ = ++shapes;
  h->next_page_.assign(plan.groups.size(), 0);
  return h;
}

int ModelHarness::NewSequence(int prefix_of, uint32_t prefix) {
  Sequence s;
  s.tables.resize(plan().groups.size());
  if (prefix_of >= 0) {
    const Sequence& from = sequences_[prefix_of];
    HF_CHECK(prefix % plan().page_size == 0 && prefix <= from.length);
    s.length = prefix;
    s.history.assign(from.history.begin(), from.history.begin() + prefix);
    for (size_t g = 0; g < s.tables.size(); ++g) s.tables[g].assign(from.tables[g].begin(), from.tables[g].begin() + prefix / plan().page_size);
  }
  sequences_.push_back(std::move(s));
  return static_cast<int>(sequences_.size()) - 1;
}

std::vector<float> ModelHarness::Step(const std::vector<Feed>& feeds) {
  const uint32_t ps = static_cast<uint32_t>(plan().page_size);
  sched::StepPlan step;
  step.step = StepNo(++step_);
  for (const Feed& feed : feeds) {
    Sequence& s = sequences_[feed.sequence];
    s.history.insert(s.history.end(), feed.tokens.begin(), feed.tokens.end());
    sched::StepEntry entry;
    entry.request = RequestId(feed.sequence + 1);
    entry.start = s.length;
    entry.tokens = feed.tokens;
    entry.history = s.history;
    entry.sample = true;
    for (size_t g = 0; g < s.tables.size(); ++g) {
      const uint32_t blocks = (s.length + static_cast<uint32_t>(feed.tokens.size()) + ps - 1) / ps;
      while (s.tables[g].size() < blocks) {
        HF_CHECKF(next_page_[g] < storage_->pages(static_cast<int>(g)), "harness out of pages in group {}", g);
        s.tables[g].push_back(static_cast<int32_t>(next_page_[g]++));
      }
      const uint32_t window = plan().groups[g].window;
      // The first key any of the step's queries sees is start - window + 1: pages before it are gone.
      if (window > 0 && s.length + 1 > window) {
        for (uint32_t b = 0; b < (s.length + 1 - window) / ps; ++b) s.tables[g][b] = -1;
      }
      entry.tables.push_back(s.tables[g].data());
    }
    step.entries.push_back(std::move(entry));
    step.total_tokens += static_cast<uint32_t>(feed.tokens.size());
    s.length += static_cast<uint32_t>(feed.tokens.size());
  }
  const bool single = step.total_tokens == feeds.size() && !divided_;
  const size_t padded = single ? static_cast<size_t>(ops_->PaddedRows(static_cast<int64_t>(feeds.size()))) : step.total_tokens;
  const kernels::Batch& batch = batch_.Fill(step, plan(), hparams().vocab, {}, true, padded - step.total_tokens);
  const int64_t vocab = hparams().vocab, bytes = static_cast<int64_t>(padded) * vocab * 4;
  if (logits_.bytes() < bytes) logits_ = ops_->Allocate(bytes);
  std::vector<int32_t> rows(padded);
  std::iota(rows.begin(), rows.end(), 0);
  model_->Begin(*ops_, batch);
  const auto compute = [&] {
    model_->Compute(*ops_, batch, storage_->view());
    model_->Logits(*ops_, rows, kernels::Mat(logits_.as<float>(), static_cast<int64_t>(padded), vocab));
  };
  single ? ops_->Repeatable(shape_, compute) : compute();
  if (!model_->status().ok()) return {};
  std::vector<float> out(step.total_tokens * static_cast<size_t>(vocab));
  ops_->Sync();
  ops_->CopyToHost(reinterpret_cast<std::byte*>(out.data()), logits_.data(), static_cast<int64_t>(out.size()) * 4);
  ops_->Sync();
  return out;
}

void ModelHarness::MoveAllPages() {
  for (size_t g = 0; g < next_page_.size(); ++g) {
    std::vector<int32_t> to(next_page_[g], -1);
    for (Sequence& s : sequences_) {
      for (int32_t& page : s.tables[g]) {
        if (page < 0) continue;
        if (to[page] < 0) {
          HF_CHECK(next_page_[g] < storage_->pages(static_cast<int>(g)));
          to[page] = static_cast<int32_t>(next_page_[g]++);
          storage_->MovePage(static_cast<int>(g), static_cast<uint32_t>(page), static_cast<uint32_t>(to[page]));
        }
        page = to[page];
      }
    }
  }
}

double Nmse(std::span<const float> a, std::span<const float> b) {
  HF_CHECK(a.size() == b.size());
  double error = 0, power = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    power += static_cast<double>(b[i]) * b[i];
  }
  return error / power;
}

size_t Argmax(std::span<const float> row) { return std::max_element(row.begin(), row.end()) - row.begin(); }

}  // namespace holdfast::test
