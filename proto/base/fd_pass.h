#pragma once
// Descriptors handed from process to process over a connected AF_UNIX socket of packets: one packet = one tag byte and at most one
// descriptor. What a supervisor and its workers say this way (they never say it twice, and neither waits for room):
//   worker -> supervisor  kWeights (fd)    sealed weights, to be handed to the next generation
//                         kDropWeights     the weights handed to me are of no use: close them; answered with kDropped
//                         kRecording (fd)  the recording of this generation (worker/replay/format.h)
//   supervisor -> worker  kWeights (fd)    waits in the socket when the worker starts; kDropped
#include "proto/base/unique_fd.h"

namespace holdfast {

enum class FdTag : char { kWeights = 'W', kDropWeights = 'X', kDropped = 'x', kRecording = 'R' };

// Both ends, close-on-exec, non-blocking. False: errno says why.
bool FdSocketPair(UniqueFd* a, UniqueFd* b);

// Sends the tag and, when fd >= 0, the descriptor; the caller keeps its own. False: the other end is gone or does not read.
bool SendFd(int socket, FdTag tag, int fd = -1);

enum class FdReceived : unsigned char { kNothing, kPacket, kClosed };
// Takes the next packet, if there is one. The descriptor is close-on-exec; empty when the packet brought none. Anything that is not a packet
// of the form above is dropped.
FdReceived ReceiveFd(int socket, FdTag* tag, UniqueFd* fd);

}  // namespace holdfast
