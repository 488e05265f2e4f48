#pragma once
// NCCL as far as kernels/nccl.h names it, between the emulated devices of one process: the ranks are threads, each with a stream of the SIMT
// machine. Calls are enqueued and run when the stream does, lazily and in its order; an exchange is over when every partner has come to
// the matching one. Counts that differ, or calls in another order, never meet: as with the real library, everybody then waits for ever.
//
// Not like the real one: there is one bandwidth, no channels and no choice of algorithms, and nothing is checked beyond what is listed here.
#include <cstdint>

#include "kernels/nccl.h"

namespace holdfast::test {

const kernels::nccl::Api& FakeNccl();

// What a test makes of it. Changes count for communicators that are alive, too.
struct FakeNcclFaults {
  int version = 22809;
  kernels::nccl::Result id = kernels::nccl::kSuccess;           // of GetUniqueId
  kernels::nccl::Result init = kernels::nccl::kSuccess;         // of the communicator of rank fail_rank, when all have come
  kernels::nccl::Result async = kernels::nccl::kSuccess;        // what CommGetAsyncError tells rank fail_rank
  int fail_rank = 0;
  bool slow_calls = false;                                      // every call is in progress for a while, as a first one may be
};
void SetFakeNccl(const FakeNcclFaults& faults);
int FakeNcclCommunicators();                                    // alive: neither destroyed nor aborted
int FakeNcclAborts();                                           // so far

}  // namespace holdfast::test
