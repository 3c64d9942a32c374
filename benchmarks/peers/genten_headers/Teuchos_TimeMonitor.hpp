// Genten's headers time functions by Teuchos, whose headers its wheel lacks. Nothing is timed here.
#pragma once
#define TEUCHOS_FUNC_TIME_MONITOR(name)
#define TEUCHOS_FUNC_TIME_MONITOR_DIFF(name, difference)
