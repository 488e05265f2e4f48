#pragma once
// The log of a run as text, for the second oracle (tests/support/kvmodel): every command as it was given and every decision that followed.
// One command a line, and behind each what the scheduler is then:
//
//   config PS N CHUNK OVERLAP MAX_SEQ_LEN MAX_WAITING RESERVE WINDOW:PAGES:RESERVED...
//   submit ID PROMPT MAX_TOKENS NO_CACHE LOGPROBS RUN_AHEAD SALT ANCHORS TOKENS        (lists with commas, - = none)
//   plan ID:START:TOKENS:SAMPLE:AWAITED...   (- = nothing; AWAITED: the token that a decode launched ahead of it takes, - = none)
//   apply ID:TOKEN:STOP:FAILED...   (- = nobody sampled)
//   cancel ID      evict GROUP COUNT      suspect GROUP PAGE      resize OPERATION FULL WINDOW CANCEL      reset
//   state DIGEST RUNNING WAITING NODES FREE:HELD:EVICTABLE:RETIRING:QUARANTINED...
#include <functional>
#include <string>

#include "worker/sched/scheduler.h"

namespace holdfast::sim {

std::string ConfigLine(const sched::SchedulerConfig& config);
std::string SubmitLine(const sched::SubmitCommand& command);
// awaited(entry): the token that an entry with `awaits` takes.
std::string PlanLine(const sched::StepPlan* plan, const std::function<TokenId(const sched::StepEntry&)>& awaited);
std::string ApplyLine(const sched::StepResult& result);
std::string StateLine(const sched::Scheduler& scheduler);

}  // namespace holdfast::sim
