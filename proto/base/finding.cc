#include "proto/base/finding.h"

namespace holdfast {

std::string_view SeverityName(Severity severity) {
  switch (severity) {
    case Severity::kSuspect: return "suspect";
    case Severity::kPage: return "page";
    case Severity::kSequence: return "sequence";
    case Severity::kStructural: return "structural";
  }
  return "unknown";
}

}  // namespace holdfast
