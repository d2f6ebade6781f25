//! Queries that need a planner, by DataFusion.
