#include "worker/kv/row.h"

#include <algorithm>

namespace holdfast::kv {

void SeqRow::Reserve(uint32_t blocks) {
  for (Table& t : tables_) {
    t.refs.reserve(blocks);
    t.mirror.reserve(blocks);
  }
}

void SeqRow::Touch(Table& table, uint32_t block) {
  table.dirty_begin = std::min(table.dirty_begin, block);
  table.dirty_end = std::max(table.dirty_end, block + 1);
}

SeqRow::Range SeqRow::TakeDirty(size_t group) {
  Table& t = tables_[group];
  const Range range = t.dirty_begin < t.dirty_end ? Range{t.dirty_begin, std::min<uint32_t>(t.dirty_end, t.mirror.size())} : Range{};
  t.dirty_begin = UINT32_MAX;
  t.dirty_end = 0;
  return range;
}

void SeqRow::Append(size_t group, PageRef ref, const Arena& arena, GroupTally& tally) {
  Table& t = tables_[group];
  if (ref) tally.rows += arena.Hash(ref.page());
  t.mirror.push_back(ref ? static_cast<int32_t>(ref.page()) : -1);
  t.refs.push_back(std::move(ref));
  Touch(t, static_cast<uint32_t>(t.refs.size() - 1));
}

PageRef SeqRow::Exchange(size_t group, uint32_t block, PageRef ref, const Arena& arena, GroupTally& tally) {
  Table& t = tables_[group];
  PageRef old = std::move(t.refs[block]);
  if (old) tally.rows -= arena.Hash(old.page());
  if (ref) tally.rows += arena.Hash(ref.page());
  t.mirror[block] = ref ? static_cast<int32_t>(ref.page()) : -1;
  t.refs[block] = std::move(ref);
  Touch(t, block);
  return old;
}

void SeqRow::DropLast(size_t group) {
  tables_[group].refs.pop_back();
  tables_[group].mirror.pop_back();
}

void SeqRow::ForgetAll() {
  for (Table& t : tables_) {
    for (PageRef& ref : t.refs) ref.Forget();
    t.refs.clear();
    t.mirror.clear();
    t.slid = 0;
  }
  node = kNoNode;
  indexed = settled = launched = 0;
}

void SeqRow::RewriteMirror() {
  for (Table& t : tables_) {
    t.mirror.resize(t.refs.size());
    for (size_t i = 0; i < t.refs.size(); ++i) t.mirror[i] = t.refs[i] ? static_cast<int32_t>(t.refs[i].page()) : -1;
    t.dirty_begin = 0;
    t.dirty_end = static_cast<uint32_t>(t.refs.size());
  }
}

}  // namespace holdfast::kv
