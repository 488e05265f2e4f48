#pragma once
// The process's Prometheus registry (one of the two globals of a process; the fault table is the other). Names start with holdfast_.
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <string>

namespace holdfast {

prometheus::Registry& MetricsRegistry();

// The registry in text format 0.0.4. Reading has no side effects.
std::string MetricsText();

}  // namespace holdfast
