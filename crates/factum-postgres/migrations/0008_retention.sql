-- Tables that do not grow.
SELECT 1;
