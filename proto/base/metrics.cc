#include "proto/base/metrics.h"

#include <prometheus/text_serializer.h>

namespace holdfast {

prometheus::Registry& MetricsRegistry() {
  static auto* registry = new prometheus::Registry;  // never destroyed: threads may count until the very end
  return *registry;
}

std::string MetricsText() { return prometheus::TextSerializer().Serialize(MetricsRegistry().Collect()); }

}  // namespace holdfast
